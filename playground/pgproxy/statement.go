package pgproxy

import (
	"fmt"
	"regexp"
	"strings"
)

// class has the properties of SQL that the proxy needs.
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

// classify reads one or more statements. The result is a commit if any statement commits, and a
// rollback only if all roll back.
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

// nextStatement splits SQL at its first semicolon. The returned code lacks comments and the contents of
// quotes.
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

// after returns the index behind the first occurrence of end at or after from.
func after(text string, from int, end string) int {
	if i := strings.Index(text[from:], end); i >= 0 {
		return from + i + len(end)
	}
	return len(text)
}

// dollarTag returns the opening tag of a dollar-quoted string, or "" for anything else, such as the
// parameter $1.
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

// withoutLock removes the locking clause from the end of a statement.
func withoutLock(sql string) (changed string, did bool) {
	changed = regexp.MustCompile(`(?i)\s+FOR\s+(NO\s+KEY\s+)?UPDATE\s*$`).ReplaceAllString(sql, "")
	return changed, changed != sql
}

// cacheSequences adds a cache of n numbers per session to identity columns that do not define one.
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
