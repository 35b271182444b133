"""What a rank says at its end when all is well; any other reason of a BYE is that of a failure."""

FINISHED = "finished"
"""Its process ends by itself. The exit code still tells whether its script meant that."""

LEFT = "left its group"
"""Its script has destroyed its process groups in good order, and the training with it. Whoever started the
process may kill it from now on (Ray does, once its train function has returned): that is no death."""

WELL = frozenset({FINISHED, LEFT})
