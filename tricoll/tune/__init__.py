"""``tricoll tune``: measures the algorithms on the fabric at hand, fits the cost model's constants to that, and keeps
them in a file, a *profile*, by which ``algo="auto"`` chooses from then on. See docs/tuning.md.

:mod:`.measure` takes times, :mod:`.samples` keeps them, :mod:`.fit` finds the constants and judges the choice that
they make, :mod:`.report` shows it, and :mod:`.session` does all of it. :mod:`tricoll.tuned` stores and finds profiles.
"""
