// Package console tries the web console, and the books of the quickstart, in a real headless Chromium.
package console
