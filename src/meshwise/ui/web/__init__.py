"""ui.web: the page of 'meshwise ui'."""
