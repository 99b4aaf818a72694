package statefile

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Key identifies an instance of a module or a resource. Keys are comparable; the zero value means
// no key.
type Key struct {
	// Text is the key of for_each, Number that of count, depending on Kind.
	Text   string
	Number int64
	Kind   KeyKind
}

// KeyKind is the origin of a key.
type KeyKind uint8

// The origins of a key.
const (
	NoKey    KeyKind = iota
	CountKey         // an index of count
	EachKey          // a key of for_each
)

// String returns the key as in an address: ["a"], [0], or nothing.
func (k Key) String() string {
	switch k.Kind {
	case CountKey:
		return "[" + strconv.FormatInt(k.Number, 10) + "]"
	case EachKey:
		return "[" + quote(k.Text) + "]"
	}
	return ""
}

// quote quotes a string as HCL does: the beginnings of templates are doubled.
func quote(text string) string {
	quoted := strconv.Quote(text)
	quoted = strings.ReplaceAll(quoted, "${", "$${")
	return strings.ReplaceAll(quoted, "%{", "%%{")
}

func unquote(quoted string) (string, error) {
	text, err := strconv.Unquote(quoted)
	text = strings.ReplaceAll(text, "$${", "${")
	return strings.ReplaceAll(text, "%%{", "%{"), err
}

// Step is a module call in an address.
type Step struct {
	Name string
	Key  Key
}

// Address is the address of a resource instance in OpenTofu, such as
// module.net["a"].aws_subnet.private[0].
type Address struct {
	Module []Step
	// Data marks a data source.
	Data       bool
	Type, Name string
	Key        Key
}

// String returns the address in OpenTofu's notation.
func (a Address) String() string { return a.resource() + a.Key.String() }

// resource returns the address without the instance key.
func (a Address) resource() string {
	text := moduleText(a.Module)
	if text != "" {
		text += "."
	}
	if a.Data {
		text += "data."
	}
	return text + a.Type + "." + a.Name
}

// Config returns the address in the configuration, without any keys. Dependencies are recorded in
// this form.
func (a Address) Config() string {
	bare := Address{Data: a.Data, Type: a.Type, Name: a.Name}
	for _, step := range a.Module {
		bare.Module = append(bare.Module, Step{Name: step.Name})
	}
	return bare.resource()
}

func moduleText(module []Step) string {
	var b strings.Builder
	for i, step := range module {
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString("module." + step.Name + step.Key.String())
	}
	return b.String()
}

// ParseAddress parses an address in the form of String.
func ParseAddress(text string) (Address, error) {
	p := addressParser{rest: text}
	a := Address{Module: p.modules()}
	word := p.word()
	if word == "data" {
		a.Data = true
		p.dot()
		word = p.word()
	}
	a.Type = word
	p.dot()
	a.Name = p.word()
	a.Key = p.key()
	if p.failed == "" && p.rest != "" {
		p.failed = fmt.Sprintf("unexpected %q", p.rest)
	}
	if p.failed != "" {
		return Address{}, fmt.Errorf(`%q is not a resource address such as module.net.aws_subnet.private["a"]: %s`, text, p.failed)
	}
	return a, nil
}

// parseModule parses the address of a module instance.
func parseModule(text string) ([]Step, error) {
	if text == "" {
		return nil, nil
	}
	p := addressParser{rest: text + "."}
	module := p.modules()
	if p.failed == "" && p.rest != "" {
		p.failed = fmt.Sprintf("unexpected %q", strings.TrimSuffix(p.rest, "."))
	}
	if p.failed != "" {
		return nil, fmt.Errorf(`%q is not a module address such as module.net["a"]: %s`, text, p.failed)
	}
	return module, nil
}

// An addressParser parses an address. After a failure it returns zero values.
type addressParser struct{ rest, failed string }

func (p *addressParser) modules() (module []Step) {
	for p.failed == "" && strings.HasPrefix(p.rest, "module.") {
		p.rest = p.rest[len("module."):]
		step := Step{Name: p.word()}
		step.Key = p.key()
		p.dot()
		module = append(module, step)
	}
	return module
}

func (p *addressParser) dot() {
	if p.failed != "" {
		return
	}
	if !strings.HasPrefix(p.rest, ".") {
		p.failed = "missing dot before " + strconv.Quote(p.rest)
		return
	}
	p.rest = p.rest[1:]
}

// word parses an HCL identifier.
func (p *addressParser) word() string {
	if p.failed != "" {
		return ""
	}
	end := strings.IndexFunc(p.rest, func(r rune) bool {
		return r != '_' && r != '-' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	if end < 0 {
		end = len(p.rest)
	}
	if end == 0 {
		p.failed = "missing name before " + strconv.Quote(p.rest)
	}
	word := p.rest[:end]
	p.rest = p.rest[end:]
	return word
}

func (p *addressParser) key() Key {
	if p.failed != "" || !strings.HasPrefix(p.rest, "[") {
		return Key{}
	}
	if quoted, err := strconv.QuotedPrefix(p.rest[1:]); err == nil && quoted[0] == '"' {
		after, closed := strings.CutPrefix(p.rest[1+len(quoted):], "]")
		text, err := unquote(quoted)
		if err == nil && closed {
			p.rest = after
			return Key{Kind: EachKey, Text: text}
		}
	}
	number, after, closed := strings.Cut(p.rest[1:], "]")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || !closed || n < 0 {
		p.failed = "expected a number or a quoted string, and then ], at " + strconv.Quote(p.rest)
		return Key{}
	}
	p.rest = after
	return Key{Kind: CountKey, Number: n}
}
