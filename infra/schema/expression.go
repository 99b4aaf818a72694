package schema

import "strings"

// HasExpression reports whether a string contains ${…} that is not escaped as $${, and so has to be
// evaluated.
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

// unescape returns the literal value of a string without expressions.
func unescape(text string) string { return strings.ReplaceAll(text, "$${", "${") }

// escape is the inverse of unescape.
func escape(text string) string { return strings.ReplaceAll(text, "${", "$${") }
