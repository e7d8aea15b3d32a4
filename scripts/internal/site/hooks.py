import re


def on_page_markdown(markdown, page, **_):
    """Let the search find what to do before why it was decided, and before each function of it."""
    if page.file.src_uri.startswith(("docs/adr/", "packages/")):
        page.meta["search"] = {"boost": 0.3}
    return markdown


def on_page_content(html, **_):
    """Give each diagram a frame that scrolls: on a phone it would shrink until nobody can read it."""
    return re.sub(r'(?s)<pre class="mermaid">.*?</pre>', r'<div class="diagram">\g<0></div>', html)
