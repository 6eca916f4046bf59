"""What is checked of every error that a user may see."""


def one_line(error: BaseException) -> str:
    """The message of an error, once it is seen to be one line that a terminal can print."""
    message = str(error)
    assert message.isprintable()
    return message
