package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/atoll-dev/atoll/fleet/webhooks"
)

type interpretOptions struct {
	files, interpretations []string
	clusters               []string
	expect, output         string
}

func newInterpretCommand() *cobra.Command {
	var opts interpretOptions
	cmd := &cobra.Command{
		Use:   "interpret -f FILE",
		Short: "Show how Atoll interprets objects, and test ResourceInterpretations",
		Long: `Show how Atoll interprets the objects in files: how many clusters they run in and how
their replicas divide, which objects they need and follow, what is sent to each cluster,
their health, and how the statuses of several clusters are aggregated. It contacts no
server, apart from the webhooks of ResourceInterpretations.

Kinds without built-in support are interpreted by common conventions. A
CustomResourceDefinition in the files defines where their replicas are. A
ResourceInterpretation, in the files or passed with --interpretation, defines more.

An object with the annotation fleet.atoll.dev/cluster is that cluster's copy of the
object with the same name. Objects that were read from members have the annotation.`,
		Example: `  # Show how an app is interpreted
  atoll interpret -f app.yaml

  # Test an interpretation
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml

  # Save the results, and later compare with them (exit code 1 if they differ)
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml -o yaml >expected.yaml
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml --expect expected.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVarP(&opts.files, "filename", "f", nil, "Files with objects, YAML or JSON; - reads standard input.")
	flags.StringSliceVar(&opts.interpretations, "interpretation", nil, "Files with ResourceInterpretations.")
	flags.StringSliceVar(&opts.clusters, "clusters", nil, "Names of the clusters to divide replicas among. (default: those in the files, else east,west)")
	flags.StringVar(&opts.expect, "expect", "", "Compare the results with a file that was written with -o yaml or -o json.")
	flags.StringVarP(&opts.output, "output", "o", "", outputFlag("yaml", "json"))
	return cmd
}

func (o interpretOptions) run(ctx context.Context, in io.Reader, out io.Writer) error {
	if len(o.files) == 0 {
		return fmt.Errorf("no objects: pass them with -f FILE, or -f - for standard input")
	}
	if o.output != "" {
		if err := checkFormat(o.output, "yaml", "json"); err != nil {
			return err
		}
	}
	var subject interpretInput
	for _, file := range slices.Concat(o.files, o.interpretations) {
		data, err := readFileOrStdin(in, file)
		if err != nil {
			return err
		}
		objects, err := decodeObjects(data)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if err := subject.add(objects); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	answers, err := subject.interpret(o.clusters, webhooks.NewDirect(ctx, webhooks.NewCaller(nil).Ask))
	if err != nil {
		return err
	}
	switch {
	case o.expect != "":
		return compareInterpretations(out, o.expect, answers)
	case o.output != "":
		return printStructured(out, o.output, answers)
	}
	return printInterpretations(out, answers)
}

// readFileOrStdin reads a file; - is standard input.
func readFileOrStdin(in io.Reader, name string) ([]byte, error) {
	if name == "-" {
		data, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fileFlagError(err)
	}
	return data, nil
}

// fileFlagError adds to the error about a file of a flag -f what the flag accepts.
func fileFlagError(err error) error {
	return fmt.Errorf("%w: -f requires a readable file, or - for standard input", err)
}
