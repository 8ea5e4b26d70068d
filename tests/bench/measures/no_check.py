"""A correctness check that finds everything right, for mechanisms that compute nothing."""


class NoCheck:
    gradient = None

    def find_nothing(self, *arguments):
        pass

    check_before = check_forward = set_sign = check_first = check_last = finish = find_nothing
