"""The page for reviewers: one HTML file with a scope's whole state graph, and traces beside it.

``dataset`` encodes states and transitions compactly, ``traced`` runs traces, ``pictures`` lays
the projections out, ``document`` makes the file; ``front/`` has the page's own HTML, CSS and
JavaScript.
"""
