package alike

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
)

// names give what is made at random in each world the same name in both: IDs are called after the address that had
// them first, and digests after what they are of.
type names struct {
	directory string
	known     map[string]string
	counts    map[string]int
	random    *regexp.Regexp
}

func newNames(directory string) *names {
	return &names{directory: directory, known: map[string]string{}, counts: map[string]int{},
		random: regexp.MustCompile(`demo5?_[a-z]+-[0-9a-f]{16}|[0-9a-f]{64}`)}
}

// learn gives an ID its name, if it has none.
func (n *names) learn(id, called string) {
	if id == "" || n.known[id] != "" {
		return
	}
	n.counts[called]++
	n.known[id] = fmt.Sprintf("<%s#%d>", called, n.counts[called])
}

// learnDigest names a digest after the text that it is of.
func (n *names) learnDigest(digest, text string) {
	if digest == "" || n.known[digest] != "" {
		return
	}
	if text = n.text(text); !strings.Contains(text, unknownName) { // or else when more is known
		n.known[digest] = "<digest of " + text + ">"
	}
}

// unknownName is of what has none.
const unknownName = "<not known>"

func (n *names) text(text string) string {
	text = strings.ReplaceAll(text, n.directory, "<world>")
	return n.random.ReplaceAllStringFunc(text, func(id string) string {
		if name := n.known[id]; name != "" {
			return name
		}
		return unknownName
	})
}

// private are a provider's own bytes. The library of demo keeps values in base64 there.
func (n *names) private(text string) string {
	var kept map[string]string
	if json.Unmarshal([]byte(text), &kept) != nil {
		return n.text(text)
	}
	for key, value := range kept {
		if decoded, err := base64.StdEncoding.DecodeString(value); err == nil {
			value = string(decoded)
		}
		kept[key] = n.text(value)
	}
	return line(kept)
}

// value is a JSON value in a form that both have in common: names for what is random, no nulls in objects, numbers in one
// way of writing them.
func (n *names) value(v any) any {
	switch v := v.(type) {
	case string:
		return n.text(v)
	case json.Number:
		return number(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = n.value(v[i])
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for key, of := range v {
			if of = n.value(of); of != nil {
				out[n.text(key)] = of
			}
		}
		return out
	}
	return v
}

// attributes are the value of all of a resource, with its sets sorted.
func (n *names) attributes(typ string, v any) map[string]any {
	out, _ := n.value(v).(map[string]any)
	if out == nil {
		return nil
	}
	for _, name := range kindOf(typ).sets {
		out[name] = sorted(out[name])
		if out[name] == nil {
			delete(out, name)
		}
	}
	return out
}

func sorted(v any) any {
	switch v := v.(type) {
	case []any:
		out := slices.Clone(v)
		slices.SortFunc(out, func(a, b any) int { return strings.Compare(line(a), line(b)) })
		return out
	case map[string]any:
		for _, key := range slices.Collect(maps.Keys(v)) {
			v[key] = sorted(v[key])
		}
	}
	return v
}

func number(v json.Number) any {
	f, _, err := big.ParseFloat(v.String(), 10, 512, big.ToNearestEven)
	if err != nil {
		return v.String()
	}
	return json.Number(f.Text('g', 60))
}

// decode reads JSON without losing digits.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// line is a value as one line, the same for equal values.
func line(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}
