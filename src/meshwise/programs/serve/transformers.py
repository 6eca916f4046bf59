"""transformers: it has no server, so the command measures it with `meshwise bench`."""

import shlex

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.programs.serve import setup


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the `meshwise bench` command with as many requests as the plan runs at once."""
    given = setup.of_layout(q, layout)
    users = given.whole("copy_users")
    words = ["meshwise", "bench", q.model.name, "--engine", "transformers", "--prompt", str(q.work.prompt)]
    return [shlex.join([*words, "--output", str(q.work.output), "--users", str(users)])]
