# %% [markdown]
# # Serving
# WRITE: what is measured here. Predict before you run.

# %% tags=["setup"]
import math

# %% tags=["todo"] task="N1" title="WRITE: question 1"
def answer_1(tokens):
    # BEGIN SOLUTION
    return math.ceil(tokens / 16)
    # END SOLUTION

# %% tags=["check"] task="N1"
check(answer_1(17), 2, "WRITE: why it is so")

# %% tags=["todo"] task="N2" title="WRITE: question 2"
def answer_2(tokens):
    # BEGIN SOLUTION
    return math.ceil(tokens / 16)
    # END SOLUTION

# %% tags=["check"] task="N2"
check(answer_2(17), 2, "WRITE: why it is so")

# %% tags=["todo"] task="N3" title="WRITE: question 3"
def answer_3(tokens):
    # BEGIN SOLUTION
    return math.ceil(tokens / 16)
    # END SOLUTION

# %% tags=["check"] task="N3"
check(answer_3(17), 2, "WRITE: why it is so")

# %% tags=["todo"] task="N4" title="WRITE: question 4"
def answer_4(tokens):
    # BEGIN SOLUTION
    return math.ceil(tokens / 16)
    # END SOLUTION

# %% tags=["check"] task="N4"
check(answer_4(17), 2, "WRITE: why it is so")

# %% tags=["predict"] task="P1" title="WRITE: what will be measured"
guess = predict("P1", 2, "How many?")  # SOLUTION: guess = predict("P1", ..., "How many?")

# %%
score("P1", answer_1(17))
