package cli

import (
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
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
		Short: "Show what Atoll knows of objects, and try out ResourceInterpretations",
		Long: `Show what Atoll knows of the objects in files: on how many clusters they run and
how their replicas divide, what they need and what they go along with, what is
sent to each cluster, how they fare, and what becomes of the statuses of several
clusters. It asks no server.

Kinds that are not built in are interpreted by what most kinds have in common. A
CustomResourceDefinition in the files says where their replicas are; a
ResourceInterpretation, in the files or given with --interpretation, teaches more.

An object with the annotation fleet.atoll.dev/cluster is what that cluster has of
the object of its name: objects that were read from members have it.`,
		Example: `  # What is known of an app
  atoll interpret -f app.yaml

  # Try out an interpretation
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml

  # Keep the answers, and later see whether they are the same (exit code 1 if not)
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml -o yaml >expected.yaml
  atoll interpret -f rollout.yaml --interpretation rollouts.yaml --expect expected.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringSliceVarP(&opts.files, "filename", "f", nil, "Files with objects, YAML or JSON; - reads standard input.")
	flags.StringSliceVar(&opts.interpretations, "interpretation", nil, "Files with ResourceInterpretations.")
	flags.StringSliceVar(&opts.clusters, "clusters", nil, "Names of clusters to divide among. (default: those in the files, else east,west)")
	flags.StringVar(&opts.expect, "expect", "", "Compare the answers with a file that -o yaml or -o json wrote.")
	flags.StringVarP(&opts.output, "output", "o", "", outputFlag("yaml", "json"))
	return cmd
}

func (o interpretOptions) run(in io.Reader, out io.Writer) error {
	if len(o.files) == 0 {
		return fmt.Errorf("no file named: give the objects with -f FILE, or -f - for standard input")
	}
	if o.output != "" {
		if err := checkFormat(o.output, "yaml", "json"); err != nil {
			return err
		}
	}
	var subject subjects
	for _, file := range slices.Concat(o.files, o.interpretations) {
		data, err := readFileOr(in, file)
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
	answers, err := subject.interpret(o.clusters)
	if err != nil {
		return err
	}
	switch {
	case o.expect != "":
		return compareAnswers(out, o.expect, answers)
	case o.output != "":
		return printStructured(out, o.output, answers)
	}
	return printAnswers(out, answers)
}

// readFileOr reads a file; - is standard input.
func readFileOr(in io.Reader, name string) ([]byte, error) {
	if name == "-" {
		data, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return data, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, unreadable(err)
	}
	return data, nil
}

// unreadable says what to do about a file of a flag -f that cannot be read.
func unreadable(err error) error {
	return fmt.Errorf("%w: -f takes a file that can be read here, or - for standard input", err)
}
