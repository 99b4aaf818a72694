package expr

import (
	"fmt"
	"strings"
)

// tokenKind distinguishes the tokens that matter for finding references. CEL's parser checks the
// rest.
type tokenKind uint8

const (
	end tokenKind = iota
	word
	number
	constant // a string whose content needs no unescaping
	opaque   // a string with escapes, or bytes
	sign
)

// token is the part text[from:to] of an expression.
type token struct {
	kind     tokenKind
	from, to int
	// value is the word, the digits, the sign, or the content of a constant.
	value string
}

// is reports whether the token is the sign.
func (t token) is(value string) bool { return t.kind == sign && t.value == value }

// tokens splits an expression into tokens. It stops at the brace that closes the expression, and
// returns its offset.
func tokens(text string) (found []token, closed int, err *Error) {
	var open []byte
	for at := 0; at < len(text); {
		c := text[at]
		switch {
		case at > maxExpression:
			return nil, 0, &Error{Position: -1, Problem: fmt.Sprintf("is longer than %d bytes: split it, or add the closing }", maxExpression)}
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f':
			at++
			continue
		case strings.HasPrefix(text[at:], "//"):
			if next := strings.IndexByte(text[at:], '\n'); next >= 0 {
				at += next
				continue
			}
			at = len(text)
			continue
		case c == '}' && len(open) == 0:
			return found, at, nil
		}
		t, problem := nextToken(text, at)
		if problem != "" {
			return nil, 0, &Error{Position: at, Problem: problem}
		}
		switch {
		case t.is("(") || t.is("[") || t.is("{"):
			if open = append(open, c); len(open) > maxNesting {
				return nil, 0, &Error{Position: at, Problem: fmt.Sprintf("brackets are nested more than %d deep: write a simpler expression", maxNesting)}
			}
		case t.is(")") || t.is("]") || t.is("}"):
			if len(open) == 0 || !pairs(open[len(open)-1], c) {
				return nil, 0, &Error{Position: at, Problem: fmt.Sprintf("unmatched %q", c)}
			}
			open = open[:len(open)-1]
		}
		found = append(found, t)
		at = t.to
	}
	return nil, 0, &Error{Position: -1, Problem: "the closing } is missing: add it, or write $${ for a literal ${"}
}

func pairs(open, closing byte) bool {
	return open == '(' && closing == ')' || open == '[' && closing == ']' || open == '{' && closing == '}'
}

// nextToken reads the token at an offset that is neither space nor comment.
func nextToken(text string, at int) (token, string) {
	c := text[at]
	switch {
	case c == '"' || c == '\'':
		return quotedToken(text, at, at)
	case isLetter(c):
		to := at + 1
		for to < len(text) && (isLetter(text[to]) || isDigit(text[to])) {
			to++
		}
		// r"…" and b'…' are strings.
		if to < len(text) && (text[to] == '"' || text[to] == '\'') && to-at <= 2 && strings.Trim(text[at:to], "rRbB") == "" {
			return quotedToken(text, at, to)
		}
		return token{kind: word, from: at, to: to, value: text[at:to]}, ""
	case isDigit(c):
		to := at + 1
		for to < len(text) && (isLetter(text[to]) || isDigit(text[to]) || text[to] == '.' && to+1 < len(text) && isDigit(text[to+1])) {
			to++
		}
		return token{kind: number, from: at, to: to, value: text[at:to]}, ""
	}
	return token{kind: sign, from: at, to: at + 1, value: text[at : at+1]}, ""
}

func isLetter(c byte) bool { return c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

// quotedToken reads a string whose prefix is text[at:quote].
func quotedToken(text string, at, quote int) (token, string) {
	prefix, mark := text[at:quote], text[quote:quote+1]
	if triple := strings.Repeat(mark, 3); strings.HasPrefix(text[quote:], triple) {
		mark = triple
	}
	raw := strings.ContainsAny(prefix, "rR")
	plain := !strings.ContainsAny(prefix, "bB")
	start := quote + len(mark)
	for i := start; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], mark):
			t := token{kind: opaque, from: at, to: i + len(mark)}
			if plain {
				t.kind, t.value = constant, text[start:i]
			}
			return t, ""
		case text[i] == '\\' && !raw:
			plain = false
			i++
		case len(mark) == 1 && (text[i] == '\n' || text[i] == '\r'):
			return token{}, "unterminated string: close the quote before the end of the line"
		}
	}
	return token{}, "unterminated string: close the quote"
}
