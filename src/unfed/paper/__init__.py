"""Every table and figure of the paper, from one command.

items         what there is: one TOML file per table or figure, with its runs at two scales, and which runs they share
build         runs what an item needs, each run once, and writes the item down
views         what an item shows of its runs: results, gaps by round, CKA, bound, spectrum
pictures      the figures
verdict       our value beside the paper's, and costs in the paper's units
"""
