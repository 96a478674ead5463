"""placeholder"""


def draw(evaluation): ...
