"""PLUG-03: no implementation is left uncalled in silence."""

import pytest

HEAD = "from bestiary import hookimpl\n"
REGISTER = "@hookimpl\ndef bestiary_register(registry):\n    pass\n"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "@hookimpl\ndef bestiary_regsiter(registry):\n    pass\n",
            ["unknown hook 'bestiary_regsiter'", "did you mean 'bestiary_register'"],
        ),
        (
            REGISTER + "@hookimpl\ndef bestiary_on_stop(event):\n    pass\n",
            ["unknown hook 'bestiary_on_stop'", "'bestiary_on_step'"],
        ),
        (
            "def bestiary_register(registry):\n    pass\n",
            ["function 'bestiary_register' is not decorated", "@hookimpl above def"],
        ),
        (
            REGISTER + "def bestiary_on_steps(event):\n    pass\n",
            ["function 'bestiary_on_steps' is not decorated", "'bestiary_on_step'"],
        ),
        (
            "@hookimpl\ndef bestiary_register(registery):\n    pass\n",
            [
                "hook 'bestiary_register' has no argument 'registery'",
                "did you mean 'registry'",
                "the hook is bestiary_register(registry)",
            ],
        ),
        (
            "@hookimpl\ndef bestiary_register(registry=None):\n    pass\n",
            ["argument 'registry' has a default and is never passed"],
        ),
        (
            "@hookimpl\ndef bestiary_register(*, registry):\n    pass\n",
            ["argument 'registry' is keyword-only"],
        ),
        (
            "@hookimpl\ndef bestiary_register(*args):\n    pass\n",
            ["takes *args"],
        ),
        (
            REGISTER + "@hookimpl\nasync def bestiary_on_step(event):\n    pass\n",
            ["hook 'bestiary_on_step' is a coroutine function"],
        ),
        (
            REGISTER + "@hookimpl\ndef bestiary_on_step(event):\n    yield\n",
            ["hook 'bestiary_on_step' is a generator"],
        ),
        (
            REGISTER + "@hookimpl(wrapper=True)\ndef bestiary_on_step(event):\n    return None\n",
            ["hook 'bestiary_on_step' is a wrapper without yield"],
        ),
        (
            REGISTER + "@hookimpl(hookwrapper=True)\ndef bestiary_on_step(event):\n    yield\n",
            ["old-style wrapper", "wrapper=True"],
        ),
        (
            "def register(registry):\n    pass\n",
            ["implements no known hook", "bestiary_register"],
        ),
        ("", ["implements no known hook"]),
    ],
)
def test_plug_03_each_fault_names_plugin_hook_and_right_name(site, source, words):
    site.install("zoo-one", "zoo_one", HEAD + source)
    site.offer("zoo-two", "zoo_two", "sampler", "two")
    plugins = site.load()
    failed, other = plugins.records[1:]
    assert (failed.name, failed.distribution, failed.version) == ("zoo_one", "zoo-one", "1.2")
    assert (failed.status, other.status) == ("failed", "active")
    assert plugins.pm.hook.bestiary_on_step.get_hookimpls() == []
    for word in words:
        assert word in failed.reason
    assert failed.error.owner == failed.owner


def test_a_class_in_place_of_an_instance_is_refused(site):
    source = HEAD + "class Hooks:\n    @hookimpl\n    def bestiary_register(self, registry): ...\n"
    site.install("zoo-one", "zoo_one", source, entry_points="[bestiary]\none = zoo_one:Hooks\n")
    assert "names the class Hooks" in site.record("zoo-one").reason


def test_a_hook_of_a_later_version_may_be_marked_optional(site):
    later = "@hookimpl(optionalhook=True)\ndef bestiary_on_moonrise(event):\n    pass\n"
    site.install("zoo-one", "zoo_one", HEAD + REGISTER + later)
    record = site.record("zoo-one")
    assert (record.status, record.hooks) == ("active", ("bestiary_register",))


def test_an_implementation_under_another_name_is_recognised(site):
    source = "@hookimpl(specname='bestiary_register')\ndef setup(registry):\n    pass\n"
    site.install("zoo-one", "zoo_one", HEAD + source)
    assert site.record("zoo-one").hooks == ("bestiary_register",)


def test_helpers_of_other_modules_and_unlike_names_are_no_hooks(site):
    helper = "def bestiary_register_all(registry):\n    pass\n"
    source = (
        HEAD
        + "from zoo_one.helper import bestiary_register_all\n"
        + "def bestiary_zzz():\n    pass\n"
        + REGISTER
    )
    site.install("zoo-one", "zoo_one", source, files={"helper.py": helper})
    assert site.record("zoo-one").status == "active"


@pytest.mark.parametrize("declared", ["'1.0'", "1", "'1'"])
def test_a_fitting_api_version_is_accepted(site, declared):
    site.install("zoo-one", "zoo_one", f"{HEAD}BESTIARY_API = {declared}\n{REGISTER}")
    assert site.record("zoo-one").status == "active"


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        ("'2.0'", "upgrade bestiary"),
        ("'1.7'", "upgrade bestiary"),
        ("'0.9'", "upgrade the plugin"),
        ("'new'", 'write BESTIARY_API = "1.0"'),
    ],
)
def test_an_incompatible_api_version_says_which_side_to_upgrade(site, declared, advice):
    site.install("zoo-one", "zoo_one", f"{HEAD}BESTIARY_API = {declared}\n{REGISTER}")
    record = site.record("zoo-one")
    assert record.status == "failed"
    assert advice in record.reason
    assert declared.strip("'") in record.reason
