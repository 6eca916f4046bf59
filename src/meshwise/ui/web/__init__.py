"""ui.web: the page of 'meshwise ui', and reports. Needs the extra `ui` (Starlette, uvicorn, Jinja2, python-multipart).

server.py    starts it: addresses, tokens, the socket     app.py       routes: pages, their .json and .csv, fragments, uploads
guard.py     what every request must satisfy              answers.py   answers that are kept, and a few threads for searches
peers.py     the user at the other end of loopback
asking.py    query strings -> questions -> forms          suggest.py   names that fit what was typed
pages/       one file per page                            named.py     files that were named on the command line
drawing.py   bars, intervals and tables as records        compare.py   two layouts side by side
render.py    templates -> HTML                            report.py    an answer as one file
templates/ static/                                        Jinja2; styles, scripts, and d3 and Plot under static/vendor/
"""
