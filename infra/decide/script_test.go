package decide

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/zclconf/go-cty/cty"

	"github.com/atoll-dev/atoll/infra/change"
	"github.com/atoll-dev/atoll/infra/providerapi"
	"github.com/atoll-dev/atoll/infra/render"
)

var update = flag.Bool("update", false, "rewrite the results in testdata")

// TestScripts runs the cases of testdata/*.txt. The name of a case is the rule that it shows. A
// case has lines "word: text", and the results after "---". The words are
//
//	prior, stored, config    values as JSON; see value
//	read, plan, apply        the provider's answer, instead of a good provider's
//	replace                  attributes that the provider reports to force a replacement
//	import, found            the ID, and the resources found under it
//	lifecycle, mode, flags   as in Input
//	fails                    validate, plan, read or apply returns an error
//	then                     the configuration to apply with: "then: {…}"
//	then read                the provider's answer to a read after the apply
//	later replace            attribute that forces a replacement only during apply
//	step                     step of a replacement
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for i, part := range strings.Split(string(text), "\n=== ") {
			name, body, _ := strings.Cut(part, "\n")
			name = strings.TrimPrefix(name, "=== ")
			given, want, _ := strings.Cut(body, "\n---\n")
			given = strings.TrimRight(given, "\n")
			t.Run(strings.TrimSuffix(filepath.Base(file), ".txt")+"/"+name, func(t *testing.T) {
				got := play(t, given)
				if i > 0 {
					out.WriteString("\n")
				}
				fmt.Fprintf(&out, "=== %s\n%s\n---\n%s", name, given, got)
				if want := strings.TrimRight(want, "\n") + "\n"; !*update && got != want {
					t.Errorf("got\n%s\nwant\n%s", got, want)
				}
			})
		}
		if *update {
			if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// script is one case.
type script struct {
	t            *testing.T
	schema       *providerapi.Schema
	provider     *fake
	input        Input
	show         ChangeOptions
	apply        *string
	step         Step
	laterReplace []cty.Path
	laterRead    *providerapi.ReadAnswer
	out          bytes.Buffer
}

func play(t *testing.T, given string) string {
	s := &script{t: t, schema: testSchema(), show: ChangeOptions{Salt: []byte("0123456789abcdef")}}
	s.provider = &fake{schema: s.schema}
	s.input = Input{Address: change.Address{Type: "demo_thing", Name: "main"}, Schema: s.schema, Provider: s.provider, Config: Null(s.schema)}
	for _, line := range strings.Split(given, "\n") {
		word, text, found := strings.Cut(line, ": ")
		if !found || strings.HasPrefix(line, "#") {
			continue
		}
		s.word(word, text)
	}
	s.decide()
	return strings.TrimRight(s.out.String(), "\n") + "\n"
}

func (s *script) word(word, text string) {
	block := &s.schema.Block
	failure := providerapi.Diagnostics{{Summary: "no", Detail: "it quotes hunter2"}}
	switch word {
	case "prior":
		v, secret := withoutMarks(block, value(s.t, block, text))
		s.input.Prior.State = providerapi.State{Value: v, Private: []byte("stored")}
		s.input.Prior.Sensitive = secret
	case "stored":
		var version int64
		if _, err := fmt.Sscanf(text, "%d ", &version); err != nil {
			s.t.Fatal(err)
		}
		_, doc, _ := strings.Cut(text, " ")
		s.input.Prior.Stored = &providerapi.StoredState{Version: version, JSON: []byte(doc)}
	case "config":
		s.input.Config = value(s.t, block, text)
	case "read":
		s.provider.read = &providerapi.ReadAnswer{State: providerapi.State{Value: value(s.t, block, text), Private: []byte("read")}}
		s.provider.data = &providerapi.DataAnswer{Value: value(s.t, block, text)}
	case "found":
		s.provider.imports = &providerapi.ImportAnswer{}
		for _, one := range strings.Split(text, " ; ") {
			s.provider.imports.Found = append(s.provider.imports.Found,
				providerapi.Imported{Type: "demo_thing", State: providerapi.State{Value: value(s.t, block, one)}})
		}
	case "import":
		s.input.ImportID = text
	case "plan":
		s.provider.plan = func(request providerapi.PlanRequest) providerapi.PlanAnswer {
			return providerapi.PlanAnswer{Planned: value(s.t, block, text), Lenient: s.provider.lenient, Replace: s.provider.replace}
		}
	case "apply":
		s.provider.apply = func(providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
			answer := providerapi.ApplyAnswer{Lenient: s.provider.lenient}
			doc, fails := strings.CutPrefix(text, "fails ")
			if fails {
				answer.Diagnostics = failure
			}
			if doc != "nothing" {
				answer.State = providerapi.State{Value: value(s.t, block, doc), Private: []byte("partial")}
			}
			return answer, nil
		}
	case "replace":
		for _, p := range strings.Fields(text) {
			s.provider.replace = append(s.provider.replace, s.path(p))
		}
	case "ignore":
		for _, p := range strings.Fields(text) {
			s.input.Lifecycle.IgnoreChanges = append(s.input.Lifecycle.IgnoreChanges, s.path(p))
		}
	case "trigger":
		s.input.Lifecycle.Trigger = text
	case "deferred":
		s.input.Deferred = text
	case "mode":
		s.input.Mode = change.Mode(text)
	case "origin":
		path, from, _ := strings.Cut(text, " ")
		s.show.Origins = map[string]string{path: from}
	case "flags":
		for _, flag := range strings.Fields(text) {
			s.flag(flag)
		}
	case "fails":
		switch text {
		case "validate":
			s.provider.validate = failure
		case "plan":
			s.provider.plan = func(providerapi.PlanRequest) providerapi.PlanAnswer {
				return providerapi.PlanAnswer{Diagnostics: failure}
			}
		case "read":
			s.provider.read = &providerapi.ReadAnswer{Diagnostics: failure}
		case "apply unavailable":
			s.provider.apply = func(providerapi.ApplyRequest) (providerapi.ApplyAnswer, error) {
				return providerapi.ApplyAnswer{}, fmt.Errorf("died: %w", providerapi.ErrUnavailable)
			}
		}
	case "then":
		s.apply = &text
	case "then read":
		if text == "fails" {
			s.laterRead = &providerapi.ReadAnswer{Diagnostics: failure}
			return
		}
		s.laterRead = &providerapi.ReadAnswer{State: providerapi.State{Value: value(s.t, block, text), Private: []byte("read")}}
	case "later replace":
		s.laterReplace = []cty.Path{s.path(text)}
	case "step":
		s.step = Step(text)
	default:
		s.t.Fatalf("unknown word %q", word)
	}
}

func (s *script) path(text string) cty.Path {
	p, err := providerapi.ParsePath(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *script) flag(flag string) {
	in := &s.input
	switch flag {
	case "refresh":
		in.Refresh = true
	case "replace":
		in.Replace = true
	case "delete":
		in.Delete = true
	case "forget":
		in.Forget = true
	case "data":
		in.Address.Data = true
	case "pending":
		in.Pending = true
	case "tainted":
		in.Prior.Tainted = true
	case "deposed":
		in.Address.Deposed = "00ab"
	case "prevent":
		in.Lifecycle.PreventDestroy = true
	case "create-first":
		in.Lifecycle.CreateBeforeDestroy = true
	case "ignore-all":
		in.Lifecycle.IgnoreAll = true
	case "lenient":
		s.provider.lenient = true
	case "unavailable":
		s.provider.unavailable = true
	default:
		s.t.Fatalf("unknown flag %q", flag)
	}
}

func (s *script) decide() {
	d, err := Decide(context.Background(), s.input)
	s.calls()
	if err != nil {
		s.failed(err)
		return
	}
	head := string(d.Action)
	if d.Reason != "" {
		head += " because " + string(d.Reason)
	}
	if d.CreateFirst {
		head += ", create first"
	}
	if len(d.Sensitive) > 0 {
		head += ", secret:"
		for _, p := range d.Sensitive {
			head += " " + providerapi.PathText(p)
		}
	}
	fmt.Fprintln(&s.out, head)
	for _, p := range d.Tolerated {
		fmt.Fprintf(&s.out, "tolerated %s\n", p)
	}
	c, err := d.Change(s.schema, s.show)
	if err != nil {
		s.t.Fatal(err)
	}
	if text, err := c.Encode(); err != nil {
		s.t.Fatal(err)
	} else if bytes.Contains(text, []byte("hunter2")) {
		s.t.Errorf("secret leaked in %s", text)
	}
	for _, show := range []func() error{
		func() error { return render.Renderer{}.Drift(&s.out, c) },
		func() error { return render.Renderer{}.Change(&s.out, c) },
	} {
		if err := show(); err != nil {
			s.t.Fatal(err)
		}
	}
	var opened *Decision
	if d.Deferred == "" {
		opened = s.sealAndOpen(d)
	}
	if s.apply != nil {
		s.execute(opened)
	}
}

func (s *script) sealAndOpen(d *Decision) *Decision {
	text, err := d.Seal(s.schema)
	if err != nil {
		s.t.Fatal(err)
	}
	opened, err := Open(text, s.schema)
	if err != nil {
		s.t.Fatal(err)
	}
	if !opened.Before.Value.RawEquals(d.Before.Value) || !opened.After.RawEquals(d.After) {
		s.t.Errorf("opened:\n%#v\nto\n%#v, decided:\n%#v\nto\n%#v", opened.Before.Value, opened.After, d.Before.Value, d.After)
	}
	return opened
}

func (s *script) execute(opened *Decision) {
	s.provider.log, s.provider.replace = nil, append(s.provider.replace, s.laterReplace...)
	s.provider.read = s.laterRead
	outcome, err := Execute(context.Background(), Execution{
		Planned: opened, Step: s.step, Schema: s.schema, Provider: s.provider,
		Config: value(s.t, &s.schema.Block, *s.apply), Lifecycle: s.input.Lifecycle,
	})
	fmt.Fprintln(&s.out, "then")
	s.calls()
	if err != nil {
		s.failed(err)
	}
	fmt.Fprintf(&s.out, "outcome %s", outcome.Action)
	if outcome.Tainted {
		fmt.Fprint(&s.out, ", tainted")
	}
	if outcome.Uncertain {
		fmt.Fprint(&s.out, ", uncertain")
	}
	for _, p := range outcome.Sensitive {
		fmt.Fprintf(&s.out, ", secret %s", providerapi.PathText(p))
	}
	fmt.Fprintf(&s.out, "\nprivate %q\n", outcome.State.Private)
	for _, p := range outcome.Tolerated {
		fmt.Fprintf(&s.out, "tolerated %s\n", p)
	}
	w := &change.Builder{Salt: s.show.Salt, Address: "test"}
	stored := w.Build(&s.schema.Block, outcome.State.Value)
	if w.Err != nil {
		s.t.Fatal(w.Err)
	}
	if v := stored.Value(); v != nil {
		fmt.Fprintf(&s.out, "state %s\n", v.JSON)
	} else {
		fmt.Fprintln(&s.out, "no state")
	}
}

func (s *script) calls() {
	for _, call := range s.provider.log {
		fmt.Fprintf(&s.out, "> %s\n", call)
	}
}

func (s *script) failed(err error) {
	fmt.Fprintf(&s.out, "error %v\n", err)
	if strings.Contains(err.Error(), "hunter2") {
		s.t.Errorf("secret leaked in %v", err)
	}
	var known *Error
	if !errors.As(err, &known) && !errors.Is(err, providerapi.ErrUnavailable) {
		s.t.Errorf("an error without a kind: %v", err)
	}
}
