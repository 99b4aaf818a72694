package schema

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/contract"
)

// Masked stands where something sensitive stood.
const Masked = "(sensitive)"

// A Mask takes sensitive values out of what providers say: they like to quote what they were told.
type Mask struct {
	// anywhere are replaced wherever they are, longest first; words only where nothing is joined to them, because
	// a password of two letters would otherwise leave no text at all.
	anywhere *strings.Replacer
	words    []string
}

// From how many letters on a secret is replaced within words, too. Digits are more often there by chance.
const (
	shortest       = 4
	shortestDigits = 6
)

// NewMask makes a mask of everything in values that is marked contract.Sensitive.
func NewMask(values ...cty.Value) Mask {
	found := map[string]bool{}
	for _, v := range values {
		if v != cty.NilVal {
			gatherMarked(v, found)
		}
	}
	var anywhere, words []string
	for _, secret := range sortedKeys(found) {
		for _, form := range formsOf(secret) {
			if letters := utf8.RuneCountInString(form); letters < shortest || letters < shortestDigits && isNumber(form) {
				words = append(words, form)
			} else {
				anywhere = append(anywhere, form)
			}
		}
	}
	slices.SortStableFunc(anywhere, func(a, b string) int { return len(b) - len(a) })
	pairs := make([]string, 0, 2*len(anywhere))
	for _, form := range anywhere {
		pairs = append(pairs, form, Masked)
	}
	return Mask{anywhere: strings.NewReplacer(pairs...), words: words}
}

// gatherMarked looks below values that are not marked, too.
func gatherMarked(v cty.Value, found map[string]bool) {
	if v.HasMark(contract.Sensitive) {
		gather(v, found)
		return
	}
	v, _ = v.Unmark()
	if known(v) && v.CanIterateElements() {
		for it := v.ElementIterator(); it.Next(); {
			_, element := it.Element()
			gatherMarked(element, found)
		}
	}
}

func gather(v cty.Value, found map[string]bool) {
	v, _ = v.UnmarkDeep()
	switch {
	case !known(v):
	case v.Type() == cty.String && v.AsString() != "":
		found[v.AsString()] = true
	case v.Type() == cty.Number:
		found[v.AsBigFloat().Text('f', -1)] = true
	case v.CanIterateElements():
		for it := v.ElementIterator(); it.Next(); {
			_, element := it.Element()
			gather(element, found)
		}
	}
}

// formsOf lists how a secret may be written in a message: as it is, in quotes, in JSON, in a URL, in base64, and each
// line of it.
func formsOf(secret string) []string {
	quoted := strconv.Quote(secret)
	forms := []string{secret, quoted[1 : len(quoted)-1], strings.ReplaceAll(quoted[1:len(quoted)-1], `\`, `\\`), url.QueryEscape(secret), url.PathEscape(secret)}
	if len(secret) >= shortest {
		forms = append(forms, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "="),
			strings.TrimRight(base64.URLEncoding.EncodeToString([]byte(secret)), "="))
	}
	if text, err := json.Marshal(secret); err == nil {
		forms = append(forms, string(text[1:len(text)-1])) // <, > and & are escaped here, and in quotes not
	}
	for line := range strings.Lines(secret) {
		// Short lines are "}" and "---".
		if line = strings.TrimSpace(line); len(line) >= 2*shortest {
			forms = append(forms, line)
		}
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}

// Text is a text without what is sensitive.
func (m Mask) Text(text string) string {
	if m.anywhere == nil {
		return text
	}
	text = m.anywhere.Replace(text)
	for _, word := range m.words {
		text = replaceWord(text, word)
	}
	return text
}

// Diagnostics are the same without what is sensitive.
func (m Mask) Diagnostics(said contract.Diagnostics) contract.Diagnostics {
	masked := slices.Clone(said)
	for i := range masked {
		masked[i].Summary = m.Text(masked[i].Summary)
		masked[i].Detail = m.Text(masked[i].Detail)
	}
	return masked
}

// replaceWord replaces word where neither a letter nor a digit is next to it.
func replaceWord(text, word string) string {
	var b strings.Builder
	for {
		at := strings.Index(text, word)
		if at < 0 {
			b.WriteString(text)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(text[:at])
		if at == 0 {
			before, _ = utf8.DecodeLastRuneInString(b.String())
		}
		after, _ := utf8.DecodeRuneInString(text[at+len(word):])
		b.WriteString(text[:at])
		if joins(before) || joins(after) {
			b.WriteString(word)
		} else {
			b.WriteString(Masked)
		}
		text = text[at+len(word):]
	}
}

func joins(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}
