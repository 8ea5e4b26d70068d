"""A gate that lets everything through, for mechanisms that compute nothing."""


class NoGate:
    gradient = None

    def let_through(self, *arguments):
        pass

    admit = look = turn = first = last = close = let_through
