"""python -m vitral"""

from vitral.cli import main

main()
