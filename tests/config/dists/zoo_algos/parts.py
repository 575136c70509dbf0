"""Components of the test algorithms."""


class Algo:
    def __init__(self, options, *args):
        self.options = options

    def collect(self, prompts): ...

    def learn(self, batch): ...
