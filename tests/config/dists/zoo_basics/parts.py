"""Components of the test plugin; importing this is recorded, since it is to happen when chosen."""


class Part:
    def __init__(self, options, *args):
        self.options = options


class Addition(Part):
    reward = "exact"
    max_tokens = 8
    stop = ()

    def problems(self, split):
        return ()


class PrefixedAddition(Addition):
    reward = "zoo_exact"


class Riddles(Addition):
    reward = ""
