"""A first run: ten clients, one of them cheats, three ways to take it out. Half a minute on a laptop.

python examples/first_run.py

`first_run.ipynb` holds the same cells with what they gave.
"""

# %% [markdown]
# # A first run
# Ten clients train a small network on handwritten digits. Client 0 stamps four pixels on its images and calls them 0: a
# backdoor. Then client 0 must leave. The preset `demo` describes all of this; here it is shorter than `unfed demo`.

# %%
import unfed

config = unfed.Config.preset("demo", ["training.rounds=40", "unlearning.rounds=12"])
run = unfed.Run.create(config, "runs/first")
run.execute()

# %% [markdown]
# If it is interrupted, `unfed.Run.open("runs/first").execute()` continues it.
#
# ## What came out
# *Retrain* started again without client 0. It shows what perfect forgetting looks like. `forget` is accuracy on client
# 0's rows, `backdoor` how often its trigger still works.


# %%
def show(rows: list[unfed.Row]) -> None:
    print("method      test  forget  backdoor     gap")
    for row in rows:
        test, forget, backdoor = (row.metrics[name].mean for name in ("test", "forget", "backdoor"))
        gap = "" if row.is_reference else f"{row.average_gap.mean:.1f}"
        print(f"{row.method:<8}{test:>8.1f}{forget:>8.1f}{backdoor:>10.1f}{gap:>8}")


show(unfed.results(run, "last"))

# %% [markdown]
# Fine-tuning (`ft`) keeps much of the backdoor. NoT negates the first layer, then fine-tunes, and loses it. Round by
# round:

# %%
unfed.plot(run, "backdoor")

# %% [markdown]
# Down and to the left is better: nearer to Retrain, for less computation.

# %%
unfed.plot(run, "gap-by-flops")

# %% [markdown]
# ## The next request
# That was a comparison; it did not replace the model in force. Now client 3 leaves. NoT runs for twenty rounds. A
# gate checks the new model before it comes into force.

# %%
run.forget(unfed.Request("client-3-leaves", clients=("3",)), "not", until=20)
for request in run.info().requests:
    print(request.id, "·", request.standing or "compared")

# %% [markdown]
# The report is one HTML file: what was asked and done, what is still there, what this does not prove.

# %%
print(unfed.write_report(run))
