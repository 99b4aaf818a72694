package cliview

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
)

// printStructured prints a plan and its changes as data: {"plan": …, "changes": […]}, page by page, so that a
// large plan needs little memory.
func (s *Session) printStructured(ctx context.Context, p *v1alpha1.Plan, filter Filter, format string) error {
	p.SetGroupVersionKind(v1alpha1.PlanResource.GroupVersion().WithKind("Plan"))
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	w := &document{out: s.Out, yaml: format == "yaml"}
	if err := w.begin(text); err != nil {
		return err
	}
	if planEnded(p.Status.Phase) && p.Status.Phase != v1alpha1.PlanFailed {
		if err := s.pages(ctx, p.Name, filter, w.items); err != nil {
			return err
		}
	}
	return w.end()
}

// document writes a document whose list is streamed.
type document struct {
	out   io.Writer
	yaml  bool
	count int
}

func (w *document) begin(plan []byte) error {
	if w.yaml {
		text, err := yaml.JSONToYAML(plan)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w.out, "plan:\n"+indent(string(text))+"changes:")
		return err
	}
	var text bytes.Buffer
	if err := json.Indent(&text, plan, "  ", "  "); err != nil {
		return err
	}
	_, err := io.WriteString(w.out, "{\n  \"plan\": "+text.String()+",\n  \"changes\": [")
	return err
}

func (w *document) items(page []json.RawMessage) error {
	for _, item := range page {
		if err := w.item(item); err != nil {
			return err
		}
	}
	return nil
}

func (w *document) item(item json.RawMessage) error {
	w.count++
	if w.yaml {
		text, err := yaml.JSONToYAML([]byte("[" + string(item) + "]"))
		if err != nil {
			return err
		}
		if w.count == 1 {
			text = append([]byte("\n"), text...)
		}
		_, err = w.out.Write(text)
		return err
	}
	comma := ","
	if w.count == 1 {
		comma = ""
	}
	_, err := io.WriteString(w.out, comma+"\n    "+string(item))
	return err
}

func (w *document) end() error {
	text := "\n  ]\n}\n"
	switch {
	case w.yaml && w.count == 0:
		text = " []\n"
	case w.yaml:
		text = ""
	case w.count == 0:
		text = "]\n}\n"
	}
	_, err := io.WriteString(w.out, text)
	return err
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("  " + line)
	}
	return b.String()
}

// writeFormatted writes a value as json or yaml.
func writeFormatted(out io.Writer, format string, v any) error {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printable replaces control characters, so that text from others cannot control the terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
