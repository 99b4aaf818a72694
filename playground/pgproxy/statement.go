package pgproxy

import (
	"fmt"
	"regexp"
	"strings"
)

// class is what the proxy wants to know of SQL.
type class struct {
	commit, rollback bool
	features         Features
}

func (f Features) String() string {
	var names []string
	for _, n := range []struct {
		Features
		name string
	}{{Listen, "LISTEN"}, {Notify, "NOTIFY"}, {AdvisoryLocks, "advisory locks"}} {
		if f&n.Features != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, ", ")
}

// classify looks at one or more statements. Several of which one commits
// commit; only if all roll back they roll back.
func classify(sql string) class {
	c := class{rollback: true}
	some := false
	for len(sql) > 0 {
		var code string
		code, sql = nextStatement(sql)
		words := strings.Fields(strings.ToUpper(code))
		if len(words) == 0 {
			continue
		}
		some = true
		rollback := false
		switch words[0] {
		case "COMMIT", "END":
			c.commit = true
		case "ROLLBACK", "ABORT":
			rollback = true
		case "LISTEN", "UNLISTEN":
			c.features |= Listen
		case "NOTIFY":
			c.features |= Notify
		}
		c.rollback = c.rollback && rollback
		code = strings.ToUpper(code)
		if strings.Contains(code, "PG_NOTIFY") {
			c.features |= Notify
		}
		if strings.Contains(code, "PG_ADVISORY") || strings.Contains(code, "PG_TRY_ADVISORY") {
			c.features |= AdvisoryLocks
		}
	}
	c.rollback = c.rollback && some
	return c
}

// nextStatement cuts SQL at its first semicolon. What it returns of the
// statement lacks comments and the contents of quotes: neither is code.
func nextStatement(sql string) (code, rest string) {
	var b strings.Builder
	for i := 0; i < len(sql); {
		end := 0
		switch tail := sql[i:]; {
		case sql[i] == ';':
			return b.String(), sql[i+1:]
		case strings.HasPrefix(tail, "--"):
			end = after(tail, 2, "\n")
		case strings.HasPrefix(tail, "/*"):
			end = after(tail, 2, "*/")
		case sql[i] == '\'' || sql[i] == '"':
			end = after(tail, 1, tail[:1])
		case sql[i] == '$':
			if tag := dollarTag(tail); tag != "" {
				end = after(tail, len(tag), tag)
			}
		}
		if end > 0 {
			b.WriteByte(' ')
			i += end
			continue
		}
		b.WriteByte(sql[i])
		i++
	}
	return b.String(), ""
}

// after is where text goes on after the first end at or behind from.
func after(text string, from int, end string) int {
	if i := strings.Index(text[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(text)
}

// dollarTag is the opening of a dollar-quoted string, "" if there is none: $1
// is a parameter.
func dollarTag(text string) string {
	end := strings.IndexByte(text[1:], '$')
	if end < 0 {
		return ""
	}
	tag := text[:end+2]
	for i, r := range tag[1 : len(tag)-1] {
		letter := r == '_' || r|0x20 >= 'a' && r|0x20 <= 'z' || r > 0x7f
		if !letter && (i == 0 || r < '0' || r > '9') {
			return ""
		}
	}
	return tag
}

// withoutLock takes the locking clause from the end of a statement.
func withoutLock(sql string) (changed string, did bool) {
	changed = regexp.MustCompile(`(?i)\s+FOR\s+(NO\s+KEY\s+)?UPDATE\s*$`).ReplaceAllString(sql, "")
	return changed, changed != sql
}

// cacheSequences has identity columns take n numbers at a time for each
// session, where their definition says nothing else.
func cacheSequences(sql string, n int) (changed string, did bool) {
	if n <= 0 {
		return sql, false
	}
	identity := regexp.MustCompile(`(?i)\bAS\s+IDENTITY\b(\s*\()?`)
	changed = identity.ReplaceAllStringFunc(sql, func(found string) string {
		if strings.HasSuffix(found, "(") {
			return found
		}
		return found + fmt.Sprintf(" (CACHE %d)", n)
	})
	return changed, changed != sql
}
