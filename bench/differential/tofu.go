package differential

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Tofu locates OpenTofu and its providers.
type Tofu struct {
	// Program is the tofu binary. Providers maps the source of a provider to the directory of its executable.
	Program   string
	Providers map[string]string
}

// tofuSide runs OpenTofu for one configuration, in a directory of its own.
type tofuSide struct {
	Tofu
	dir          string
	placeholders *placeholders
	// ids are all IDs that were ever seen, by address. current are those in the state now.
	ids, current map[string]string
	demo5        bool
	out          *Outcome
}

func (t Tofu) open(dir string, demo5 bool) (*tofuSide, error) {
	s := &tofuSide{Tofu: t, dir: filepath.Join(dir, "tofu"), placeholders: newPlaceholders(filepath.Join(dir, "tofu-world")), ids: map[string]string{}, demo5: demo5}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("disable_checkpoint = true\nprovider_installation {\n  dev_overrides {\n")
	for source, at := range t.Providers {
		fmt.Fprintf(&b, "    %q = %q\n", source, at)
	}
	b.WriteString("  }\n  direct {}\n}\n")
	return s, os.WriteFile(filepath.Join(s.dir, "tofu.rc"), []byte(b.String()), 0o600)
}

// run runs a tofu command and returns its standard output and exit code.
func (t *tofuSide) run(ctx context.Context, args ...string) ([]byte, int, error) {
	cmd := exec.CommandContext(ctx, t.Program, args...)
	cmd.Dir = t.dir
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE="+filepath.Join(t.dir, "tofu.rc"), "TF_IN_AUTOMATION=1", "TF_LOG=off", "HOME="+t.dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return nil, 0, fmt.Errorf("run tofu %s: %w", args[0], err)
	}
	if errs.Len() > 0 && err != nil {
		return nil, 0, fmt.Errorf("tofu %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	return out.Bytes(), cmd.ProcessState.ExitCode(), nil
}

func (t *tofuSide) plan(ctx context.Context, s *Step) error {
	t.out = &Outcome{}
	doc, err := TofuJSON(s, t.placeholders.directory, t.demo5, func(address string) string { return t.ids[address] })
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.dir, "main.tf.json"), doc, 0o600); err != nil {
		return err
	}
	args := []string{"plan", "-json", "-input=false", "-lock=false", "-out=plan", fmt.Sprintf("-refresh=%v", s.Refresh)}
	switch {
	case s.Destroy:
		args = append(args, "-destroy")
	case s.RefreshOnly:
		args = append(args, "-refresh-only")
	}
	for flag, all := range map[string][]Address{"-replace=": s.Replace, "-target=": s.Targets, "-exclude=": s.Exclude} {
		for _, a := range all {
			args = append(args, flag+a.String())
		}
	}
	output, code, err := t.run(ctx, args...)
	if err != nil {
		return err
	}
	t.out.Planned.Refused, t.out.Planned.Messages = diagnostics(output)
	if code != 0 {
		if len(t.out.Planned.Refused) == 0 && len(t.out.Planned.Messages) > 0 {
			t.out.Planned.Refused = []string{refusedUnnamed}
		}
		if len(t.out.Planned.Refused) == 0 {
			return fmt.Errorf("tofu plan: exit code %d without an error in its output: %s", code, output)
		}
		return nil
	}
	text, code, err := t.run(ctx, "show", "-json", "plan")
	if err != nil || code != 0 {
		return fmt.Errorf("tofu show: exit code %d: %w", code, err)
	}
	return t.readPlan(text)
}

// refusedUnnamed stands for a resource that OpenTofu refuses without naming it.
const refusedUnnamed = "(something)"

// diagnostics returns the addresses and the messages of the errors in tofu's output.
func diagnostics(output []byte) (addresses, texts []string) {
	named := regexp.MustCompile(`(data\.)?demo5?_[a-z]+\.[rd][0-9]+`)
	for line := range bytes.Lines(output) {
		var m struct {
			Type       string `json:"type"`
			Diagnostic struct {
				Severity, Summary, Detail, Address string
				Snippet                            struct{ Context string }
			} `json:"diagnostic"`
			Hook struct {
				Resource struct{ Addr string }
			} `json:"hook"`
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		d := m.Diagnostic
		switch {
		case m.Type == "apply_errored":
			addresses = append(addresses, m.Hook.Resource.Addr)
		case m.Type == "diagnostic" && d.Severity == "error":
			address := d.Address
			if address == "" {
				address = named.FindString(d.Detail)
			}
			if parts := strings.Split(d.Snippet.Context, `"`); address == "" && len(parts) > 3 {
				address = parts[1] + "." + parts[3]
			}
			if address != "" { // otherwise an apply_errored message names it
				addresses = append(addresses, address)
			}
			texts = append(texts, d.Summary+": "+d.Detail)
		}
	}
	return addresses, texts
}

// tofuChange is a resource change in the output of tofu show -json.
type tofuChange struct {
	Address, Mode, Type, Name, Deposed string
	ActionReason                       string `json:"action_reason"`
	Change                             struct {
		Actions         []string
		After           any
		AfterUnknown    any     `json:"after_unknown"`
		AfterSensitive  any     `json:"after_sensitive"`
		BeforeSensitive any     `json:"before_sensitive"`
		ReplacePaths    [][]any `json:"replace_paths"`
		Importing       *struct{ ID string }
	}
}

func (t *tofuSide) readPlan(text []byte) error {
	var doc struct {
		ResourceChanges []tofuChange `json:"resource_changes"`
		ResourceDrift   []tofuChange `json:"resource_drift"`
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return fmt.Errorf("read the plan of tofu: %w", err)
	}
	t.out.Planned.Changes = map[string]Change{}
	for _, c := range doc.ResourceChanges {
		change := Change{Action: strings.Join(c.Change.Actions, "+"), Importing: c.Change.Importing != nil, Reason: c.ActionReason}
		if change.Action == "no-op" && !change.Importing {
			continue
		}
		for _, path := range c.Change.ReplacePaths {
			if len(path) > 0 {
				change.Forces = append(change.Forces, fmt.Sprint(path[0]))
			}
		}
		change.Forces = unique(change.Forces)
		after := marked(c.Change.After, c.Change.AfterUnknown, c.Change.AfterSensitive)
		if hidden := marked(after, nil, c.Change.BeforeSensitive); jsonLine(hidden) != jsonLine(after) {
			t.out.Intended = append(t.out.Intended, intendedMasked)
			after = hidden
		}
		change.After = t.placeholders.attributes(c.Type, after)
		name := c.Address
		if c.Deposed != "" {
			name += " (deposed)"
			change.Reason = ""
		}
		t.out.Planned.Changes[name] = change.normalized()
	}
	for _, c := range doc.ResourceDrift {
		t.out.Planned.Drift = append(t.out.Planned.Drift, c.Address)
	}
	return nil
}

// marked returns a value with markers in place of unknown and sensitive parts.
func marked(v, unknown, secret any) any {
	if secret == true && (v != nil || unknown == true) {
		return sensitiveMarker
	}
	if unknown == true {
		return unknownMarker
	}
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		u, _ := unknown.(map[string]any)
		s, _ := secret.(map[string]any)
		for name := range v {
			out[name] = marked(v[name], u[name], s[name])
		}
		for name := range u {
			if _, there := v[name]; !there {
				out[name] = marked(nil, u[name], s[name])
			}
		}
		return out
	case []any:
		u, _ := unknown.([]any)
		s, _ := secret.([]any)
		out := make([]any, len(v))
		for i := range v {
			out[i] = marked(v[i], at(u, i), at(s, i))
		}
		return out
	}
	return v
}

func at(list []any, i int) any {
	if i < len(list) {
		return list[i]
	}
	return nil
}

const (
	unknownMarker   = "(unknown)"
	sensitiveMarker = "(sensitive)"
)

// apply applies the plan.
func (t *tofuSide) apply(ctx context.Context) error {
	output, code, err := t.run(ctx, "apply", "-json", "-input=false", "-lock=false", "plan")
	if err != nil {
		return err
	}
	t.out.Failed, t.out.Messages = diagnostics(output)
	t.out.Skipped = t.skipped(output)
	if code != 0 && len(t.out.Failed) == 0 {
		return fmt.Errorf("tofu apply: exit code %d without an error in its output: %s", code, output)
	}
	return nil
}

// skipped returns the planned changes that the apply never started, although nothing failed.
func (t *tofuSide) skipped(output []byte) []string {
	if len(t.out.Failed) > 0 {
		return nil
	}
	begun := map[string]bool{}
	for line := range bytes.Lines(output) {
		var m struct {
			Type string
			Hook struct{ Resource struct{ Addr string } }
		}
		if json.Unmarshal(line, &m) == nil && m.Type == "apply_start" {
			begun[m.Hook.Resource.Addr] = true
		}
	}
	var out []string
	for name, c := range t.out.Planned.Changes {
		if does := c.Action == "create" || c.Action == "update" || c.Action == "delete" || strings.Contains(c.Action, "+"); does && !begun[strings.TrimSuffix(name, " (deposed)")] {
			out = append(out, name)
		}
	}
	return out
}

// tofuState is OpenTofu's state file.
type tofuState struct {
	Resources []struct {
		Mode, Type, Name string
		Instances        []struct {
			SchemaVersion       int64 `json:"schema_version"`
			Attributes          json.RawMessage
			Private, Status     string
			Deposed             string
			CreateBeforeDestroy bool `json:"create_before_destroy"`
			Identity            json.RawMessage
		}
	}
}

// readState reads the state and the world.
func (t *tofuSide) readState() error {
	text, err := os.ReadFile(filepath.Join(t.dir, "terraform.tfstate"))
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte("{}"), nil
	}
	if err != nil {
		return err
	}
	var doc tofuState
	if err := json.Unmarshal(text, &doc); err != nil {
		return fmt.Errorf("read the state of tofu: %w", err)
	}
	var all []storedInstance
	for _, r := range doc.Resources {
		if r.Mode != "managed" {
			continue
		}
		for _, i := range r.Instances {
			s := storedInstance{address: Address{Type: r.Type, Name: r.Name}, deposed: i.Deposed != ""}
			s.SchemaVersion, s.Tainted, s.CreateFirst = i.SchemaVersion, i.Status == "tainted", i.CreateBeforeDestroy
			private, err := base64.StdEncoding.DecodeString(i.Private)
			if err != nil {
				return err
			}
			s.Private = string(private)
			attributes, err := decode(i.Attributes)
			if err != nil {
				return err
			}
			s.attributes, _ = attributes.(map[string]any)
			if len(i.Identity) > 0 {
				if s.Identity, err = decode(i.Identity); err != nil {
					return err
				}
			}
			all = append(all, s)
		}
	}
	t.out.State = t.placeholders.states(all)
	t.current = currentIDs(all)
	maps.Copy(t.ids, t.current) // removed ones may be imported again
	return t.placeholders.readWorld(t.out)
}
