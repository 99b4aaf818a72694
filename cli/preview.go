package cli

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/fleet/scheduler"
)

// preview is the common part of its subcommands.
type preview struct {
	atoll    target
	output   string
	detailed bool
	// edits are the edits of policies that would not take effect at once.
	edits []scheduler.Edit
	// stay are the objects that no other cluster takes, if one is drained.
	stay []blockedObject
	// steps are those of the object that is moved, and moved has those of some that are rebalanced or drained.
	steps []scheduler.Step
	moved movedSteps
}

// errMoves makes the program exit with 2 if --detailed-exitcode is set.
var errMoves = errors.New("something would move")

func newPreviewCommand() *cobra.Command {
	p := &preview{}
	var file, namespace string
	cmd := &cobra.Command{
		Use:   "preview -f FILE",
		Short: "Show which workloads would move, before they do",
		Long: `Show which workloads would move in the fleet if something changed.

The result comes from the scheduler's own code, with Atoll's current policies, clusters,
their APIs and capacities, and overrides.`,
		Example: `  atoll preview -f app.yaml -n shop
  atoll preview drain east
  atoll preview join south --labels topology.kubernetes.io/region=eu
  atoll preview policy -f placement.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return cmd.Help()
			}
			return p.runFile(cmd, file, namespace, func(*unstructured.Unstructured) error { return nil })
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&file, "filename", "f", "", "File with the objects that would be applied; - is standard input.")
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of objects that do not set one. The default is the kubeconfig context's namespace, or default.")
	p.addFlags(flags)
	cmd.AddCommand(p.drain(), p.join(), p.policy(), p.rebalance(), p.move())
	return cmd
}

func (p *preview) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&p.output, "output", "o", "table", outputFlag("table", "json", "yaml"))
	flags.BoolVar(&p.detailed, "detailed-exitcode", false, "Exit with 2 if something would move, with 0 if not.")
	p.atoll.addPlainFlags(flags)
}

// runFile shows the moves if the objects of a file were applied. It returns the first error of check, which may reject
// objects.
func (p *preview) runFile(cmd *cobra.Command, file, namespace string, check func(*unstructured.Unstructured) error) error {
	objects, err := readObjects(file, cmd.InOrStdin())
	if err != nil {
		return err
	}
	for _, o := range objects {
		if err := check(o); err != nil {
			return err
		}
	}
	if namespace, err = p.atoll.namespace(namespace); err != nil {
		return err
	}
	return p.run(cmd, func(ctx context.Context, f *fleetReader, s *scheduler.State) ([]scheduler.Move, error) {
		moves, edits, err := f.previewObjects(ctx, s, objects, namespace, p.notes(cmd))
		p.edits = edits
		return moves, err
	})
}

// run loads the current state, calls ask, and prints the result.
func (p *preview) run(cmd *cobra.Command, ask func(context.Context, *fleetReader, *scheduler.State) ([]scheduler.Move, error)) error {
	if err := checkFormat(p.output, "table", "json", "yaml"); err != nil {
		return err
	}
	f, err := newFleetReader(&p.atoll)
	if err != nil {
		return err
	}
	s, err := f.snapshot(cmd.Context(), cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	moves, err := ask(cmd.Context(), f, s)
	if err != nil {
		return err
	}
	if err := printPreview(cmd.OutOrStdout(), p.output, moves, p.edits); err != nil {
		return err
	}
	if p.output == "table" {
		printSteps(cmd.OutOrStdout(), p.steps)
		p.moved.print(cmd.OutOrStdout())
		if err := printStaying(cmd.OutOrStdout(), p.stay, 0); err != nil {
			return err
		}
	}
	if p.detailed && (len(moves) > 0 || len(p.edits) > 0) {
		return errMoves
	}
	return nil
}

// notes is where a preview writes what its table does not have.
func (p *preview) notes(cmd *cobra.Command) io.Writer {
	if p.output == "table" {
		return cmd.ErrOrStderr()
	}
	return io.Discard
}
