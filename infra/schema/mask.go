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

	"github.com/atoll-dev/atoll/infra/providerapi"
)

// Masked replaces sensitive text.
const Masked = "(sensitive)"

// A Mask removes sensitive values from provider messages, which often quote their input.
type Mask struct {
	// anywhere replaces long secrets everywhere, longest first. Words are replaced only where no
	// letter or digit adjoins: a password of two letters would otherwise leave no text at all.
	anywhere *strings.Replacer
	words    []string
}

// The minimum length of secrets that are replaced within words. Digits are more likely to occur by
// accident.
const (
	minSecretLength = 4
	minDigitsLength = 6
)

// NewMask returns a Mask for all parts of values that are marked providerapi.Sensitive.
func NewMask(values ...cty.Value) Mask {
	found := map[string]bool{}
	for _, v := range values {
		if v != cty.NilVal {
			collectMarked(v, found)
		}
	}
	var anywhere, words []string
	for _, secret := range sortedKeys(found) {
		for _, form := range Encodings(secret) {
			if letters := utf8.RuneCountInString(form); letters < minSecretLength || letters < minDigitsLength && isNumber(form) {
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

// collectMarked also descends into values that are not marked.
func collectMarked(v cty.Value, found map[string]bool) {
	if v.HasMark(providerapi.Sensitive) {
		collectStrings(v, found)
		return
	}
	v, _ = v.Unmark()
	if known(v) && v.CanIterateElements() {
		for it := v.ElementIterator(); it.Next(); {
			_, element := it.Element()
			collectMarked(element, found)
		}
	}
}

func collectStrings(v cty.Value, found map[string]bool) {
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
			collectStrings(element, found)
		}
	}
}

// Encodings returns the forms that a secret may have in a message: plain, quoted, in JSON, in a
// URL, in base64, and line by line.
func Encodings(secret string) []string {
	quoted := strconv.Quote(secret)
	forms := []string{secret, quoted[1 : len(quoted)-1], strings.ReplaceAll(quoted[1:len(quoted)-1], `\`, `\\`), url.QueryEscape(secret), url.PathEscape(secret)}
	if len(secret) >= minSecretLength {
		forms = append(forms, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(secret)), "="),
			strings.TrimRight(base64.URLEncoding.EncodeToString([]byte(secret)), "="))
	}
	if text, err := json.Marshal(secret); err == nil {
		forms = append(forms, string(text[1:len(text)-1])) // unlike strconv.Quote, JSON escapes <, > and &
	}
	for line := range strings.Lines(secret) {
		// Shorter lines are often just "}" or "---".
		if line = strings.TrimSpace(line); len(line) >= 2*minSecretLength {
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

// Text masks a text.
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

// Diagnostics masks diagnostics.
func (m Mask) Diagnostics(diagnostics providerapi.Diagnostics) providerapi.Diagnostics {
	masked := slices.Clone(diagnostics)
	for i := range masked {
		masked[i].Summary = m.Text(masked[i].Summary)
		masked[i].Detail = m.Text(masked[i].Detail)
	}
	return masked
}

// replaceWord masks a word where no letter or digit adjoins.
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
