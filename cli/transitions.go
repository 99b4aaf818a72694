package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/atoll-dev/atoll/fleet/moving"
)

func newTransitionsCommand() *cobra.Command {
	var (
		atoll     target
		namespace string
		all       bool
		output    string
	)
	cmd := &cobra.Command{
		Use:   "transitions",
		Short: "List the objects in transition between clusters",
		Long: `List the objects in transition between clusters, with the cause, the phase and the condition for
the next step.

Phases: Growing (clusters get replicas), Waiting (for them to be available, or for others to
be gone), Soaking (available, but not for long enough), Shrinking (replicas leave clusters),
Paused, Failed (past the deadline, with onFailure: Wait).`,
		Example: `  atoll transitions -n shop
  atoll transitions -A
  atoll transitions -A -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(output, "table", "json", "yaml", "name"); err != nil {
				return err
			}
			if all && namespace != "" {
				return errBothNamespaces
			}
			f, err := newFleetReader(&atoll)
			if err != nil {
				return err
			}
			if !all {
				if namespace, err = atoll.namespace(namespace); err != nil {
					return err
				}
			}
			client := moving.Client{Dynamic: f.dynamic}
			found, err := client.Transitions(cmd.Context(), namespace)
			if err != nil {
				return err
			}
			return printTransitions(cmd.OutOrStdout(), cmd.ErrOrStderr(), output, namespace, found, time.Now())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of the objects. The default is the kubeconfig context's namespace, or default.")
	flags.BoolVarP(&all, "all-namespaces", "A", false, "List the objects of all namespaces, and cluster-scoped ones.")
	flags.StringVarP(&output, "output", "o", "table", outputFlag("table", "json", "yaml", "name"))
	atoll.addPlainFlags(flags)
	return cmd
}

// printTransitions prints the objects in transition of a namespace, or of all with "".
func printTransitions(out, notes io.Writer, format, namespace string, found []moving.InTransition, now time.Time) error {
	switch format {
	case "name":
		for _, t := range found {
			kind := strings.ToLower(t.Kind)
			if group, _, grouped := strings.Cut(t.APIVersion, "/"); grouped {
				kind += "." + group
			}
			fmt.Fprintf(out, "%s/%s\n", kind, t.Name)
		}
		return nil
	case "json", "yaml":
		return printStructured(out, format, map[string]any{"transitions": found})
	}
	if len(found) == 0 {
		where := ""
		if namespace != "" {
			where = " in namespace " + namespace
		}
		fmt.Fprintf(notes, "No objects are in transition%s.\n", where)
		return nil
	}
	table := newTable(out)
	head, row := "OBJECT", func(t *moving.InTransition) string { return t.Kind + " " + t.Name }
	if namespace == "" {
		head = "NAMESPACE\tOBJECT"
		row = func(t *moving.InTransition) string {
			in := t.Namespace
			if in == "" {
				in = "-"
			}
			return in + "\t" + t.Kind + " " + t.Name
		}
	}
	fmt.Fprintln(table, head+"\tCAUSE\tFROM\tTO\tPHASE\tWAITING FOR\tSINCE")
	for i := range found {
		t := &found[i]
		phase, waits, since := string(t.Phase), t.WaitingFor, "<unknown>"
		if phase == "" {
			phase = "-"
		}
		if waits == "" {
			waits = "-"
		}
		if !t.Since.IsZero() {
			since = duration.HumanDuration(now.Sub(t.Since.Time))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", row(t), t.Cause, t.From, t.To, phase, waits, since)
	}
	return table.Flush()
}
