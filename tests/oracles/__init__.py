"""Plain twins of what unfed computes, and the tests that hold unfed to them.

    plain.py       a network with BatchNorm, clients, and loops around PyTorch's own optimisers   no unfed
    federated.py   every federated method, each rule on its own screen                            no unfed
    central.py     every centralised method                                                       no unfed
    measures.py    every attack, distance, interval and bound, and how rows are dealt             no unfed
    world.py       the same federation as unfed has it, the draws that both share, and `agree`
    test_*.py      unfed beside its twin, in float64, round by round

To add a twin of a method:

1. Write it from the paper, or its page in `docs/methods`, never from unfed's code: a generator in `federated.py` or
   `central.py` that gives the model of round 0, of round 1, and so on. Use plain loops and `torch.optim`.
2. What is drawn at random comes from `fed.draws` (`plain.Draws`). A new kind of draw is a method there, and its address
   stands in `world.Addressed`.
3. Test it with `same_way(method, serve(who, THETA), twin, rounds)`: clients of 10, 30 and 15 rows, two of them leaving,
   several batches in an epoch. Where the rule has regimes, check that the test is in the one it speaks of.
4. Bend each line of the rule in `tests/mutants.txt`, with this test as its killer.

An attack or a distance is a function of arrays in `measures.py`. Its test also shows that a near miss (another weight,
another spread) would differ, or a mutant could hide there. Where unfed and a twin disagree, the paper decides.
"""
