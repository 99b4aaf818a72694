package schema

import "strings"

// HasExpression tells whether a string has ${…} in it that is not escaped as $${, and so stands for a
// value that is yet to be found.
func HasExpression(text string) bool {
	for at := strings.IndexByte(text, '$'); at >= 0; {
		switch {
		case strings.HasPrefix(text[at:], "$${"):
			at += 3
		case strings.HasPrefix(text[at:], "${"):
			return true
		default:
			at++
		}
		next := strings.IndexByte(text[at:], '$')
		if next < 0 {
			return false
		}
		at += next
	}
	return false
}

// unescape is what a string without expressions says.
func unescape(text string) string { return strings.ReplaceAll(text, "$${", "${") }

// escape writes a string so that it says itself.
func escape(text string) string { return strings.ReplaceAll(text, "${", "$${") }
