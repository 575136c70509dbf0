"""Rows of JSONL, JSON, CSV and parquet files as plain Python values."""

import csv
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bestiary.errors import DataError

Row = Mapping[str, Any]
FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".parquet")


def read_rows(path: str | Path) -> list[Row]:
    """All rows of a file, in its order.

    Raises:
        DataError: naming the file and, where there is one, the row that is at fault.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(f"data file {str(path)!r} is not there", hint="check path and eval_path")
    try:
        rows = _rows(file, path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"data file {str(path)!r} is no UTF-8 text: byte 0x{error.object[error.start]:02x} "
            f"({error.reason})",
            hint="convert it, as in: iconv -f ENCODING -t utf-8 FILE > NEW",
        ) from error
    except (OSError, RecursionError, csv.Error) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(f"data file {str(path)!r} cannot be read: {reason}") from error
    if not rows:
        raise DataError(f"data file {str(path)!r} has no rows")
    return rows


def _rows(file: Path, path: str | Path) -> list[Row]:
    """The rows of a file by its ending."""
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".ndjson"):
        return list(_jsonl(file))
    if suffix == ".json":
        return _json(file)
    if suffix == ".csv":
        return _csv(file)
    if suffix == ".parquet":
        return _parquet(file)
    raise DataError(
        f"data file {str(path)!r}: the format {suffix!r} is unknown",
        hint=f"known formats: {', '.join(FORMATS)}",
    )


def _jsonl(file: Path) -> Iterator[Row]:
    index = 0
    with file.open(encoding="utf-8-sig") as stream:
        # Lines end at \n only: str.splitlines would also cut at U+2028 inside a JSON string.
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield _object(_parse(line, f"{file} line {number}"), file, index)
                index += 1


def _json(file: Path) -> list[Row]:
    content = _parse(file.read_text(encoding="utf-8-sig"), str(file))
    if not isinstance(content, list):
        raise DataError(f"{file}: a list of objects is wanted, not {type(content).__name__}")
    return [_object(row, file, index) for index, row in enumerate(content)]


def _parse(text: str, where: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is no JSON: {error}") from error


def _object(row: Any, file: Path, index: int) -> Row:  # noqa: ANN401 - any JSON value
    if not isinstance(row, dict):
        raise DataError(f"{file}: row {index} is {type(row).__name__}, an object is wanted")
    return row


def _csv(file: Path) -> list[Row]:
    csv.field_size_limit(2**31 - 1)  # a prompt may be a document; the default is 131,072
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = list(csv.DictReader(stream, strict=True))
    for index, row in enumerate(rows):
        if None in row or None in row.values():
            raise DataError(f"{file}: row {index} has not as many fields as the header")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _parquet(file: Path) -> list[Row]:
    if find_spec("pyarrow") is None:
        raise DataError(f"{file}: reading parquet needs pyarrow", hint="pip install pyarrow")
    from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

    try:
        return list(parquet.read_table(file).to_pylist())
    except Exception as error:  # pyarrow has classes of its own
        raise DataError(f"{file} is no parquet file that can be read: {error}") from error
