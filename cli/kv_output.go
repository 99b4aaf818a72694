package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// outputFlag returns the help of -o for a command's formats.
func outputFlag(formats ...string) string {
	return "Output format: " + strings.Join(formats[:len(formats)-1], ", ") + " or " + formats[len(formats)-1] + "."
}

func checkFormat(given string, formats ...string) error {
	if slices.Contains(formats, given) {
		return nil
	}
	return fmt.Errorf("invalid output format %q: -o must be one of %s", given, strings.Join(formats, ", "))
}

// printStructured prints v as JSON or YAML.
func printStructured(out io.Writer, format string, v any) error {
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

// newTable aligns columns as kubectl does.
func newTable(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 6, 4, 3, ' ', 0) }

// bytesText formats a number of bytes.
func bytesText(n int64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, i := float64(n)/(1<<10), 0
	for f >= 1023.95 && i < len(units)-1 {
		f /= 1 << 10
		i++
	}
	return fmt.Sprintf("%.1f %ciB", f, units[i])
}

// onTerminal reports whether w is a terminal.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	return term.IsTerminal(int(f.Fd())) // /dev/null is a device, too, and no terminal
}
