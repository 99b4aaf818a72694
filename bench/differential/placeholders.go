package differential

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

// placeholders replaces values that are random on each side, so that both sides can be compared. An ID gets the address
// that had it first as its placeholder, a digest the text that it was computed from.
type placeholders struct {
	directory string
	assigned  map[string]string
	counts    map[string]int
	random    *regexp.Regexp
}

func newPlaceholders(directory string) *placeholders {
	return &placeholders{directory: directory, assigned: map[string]string{}, counts: map[string]int{},
		random: regexp.MustCompile(`demo5?_[a-z]+-[0-9a-f]{16}|[0-9a-f]{64}`)}
}

// assign gives an ID a placeholder, if it has none.
func (n *placeholders) assign(id, called string) {
	if id == "" || n.assigned[id] != "" {
		return
	}
	n.counts[called]++
	n.assigned[id] = fmt.Sprintf("<%s#%d>", called, n.counts[called])
}

// assignDigest gives a digest a placeholder that contains the text it was computed from.
func (n *placeholders) assignDigest(digest, text string) {
	if digest == "" || n.assigned[digest] != "" {
		return
	}
	if text = n.text(text); !strings.Contains(text, unknownName) { // otherwise once the IDs in the text have placeholders
		n.assigned[digest] = "<digest of " + text + ">"
	}
}

// unknownName stands for a value without a placeholder.
const unknownName = "<not known>"

func (n *placeholders) text(text string) string {
	text = strings.ReplaceAll(text, n.directory, "<world>")
	return n.random.ReplaceAllStringFunc(text, func(id string) string {
		if name := n.assigned[id]; name != "" {
			return name
		}
		return unknownName
	})
}

// private normalizes a provider's private bytes. The plugin library of demo keeps base64 values in them.
func (n *placeholders) private(text string) string {
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
	return jsonLine(kept)
}

// value returns a JSON value in normal form: placeholders for random values, no nulls in objects, and one notation for
// numbers.
func (n *placeholders) value(v any) any {
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

// attributes returns the attributes of a resource in normal form, with its sets sorted.
func (n *placeholders) attributes(typ string, v any) map[string]any {
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
		slices.SortFunc(out, func(a, b any) int { return strings.Compare(jsonLine(a), jsonLine(b)) })
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

// decode reads JSON without losing digits of numbers.
func decode(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	err := d.Decode(&v)
	return v, err
}

// jsonLine returns a value as one line of JSON, identical for equal values.
func jsonLine(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Sprint(v)
	}
	return strings.TrimSpace(b.String())
}
