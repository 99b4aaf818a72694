package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/sharing"
)

// sharingFlags are the flags that expose and unexpose have in common.
type sharingFlags struct {
	atoll   target
	dryRun  string
	wait    bool
	timeout time.Duration
}

func newSharingFlags() sharingFlags {
	return sharingFlags{dryRun: string(sharing.DryRunNone), wait: true, timeout: 2 * time.Minute}
}

func (f *sharingFlags) addDryRun(flags *pflag.FlagSet) {
	flags.StringVar(&f.dryRun, "dry-run", f.dryRun, "Must be none, client or server. client only prints what would change; server also validates it in Atoll, without storing it.")
}

// addWait adds --wait and --timeout, whose descriptions differ, and the flags of the connection.
func (f *sharingFlags) addWait(flags *pflag.FlagSet, wait, timeout string) {
	flags.BoolVar(&f.wait, "wait", f.wait, wait)
	flags.DurationVar(&f.timeout, "timeout", f.timeout, timeout)
	f.atoll.addPlainFlags(flags)
}

// run connects to Atoll and runs a command with the flags' options, until the timeout. output is the
// format of -o; empty prints what changed.
func (f *sharingFlags) run(cmd *cobra.Command, output string, do func(context.Context, *sharing.Client, sharing.Options) error) error {
	config, err := f.atoll.config()
	if err != nil {
		return err
	}
	if err := f.atoll.needsRoot(v1alpha1.SharedAPIResource.Resource); err != nil {
		return err
	}
	dryRun := sharing.DryRun(f.dryRun)
	if !slices.Contains([]sharing.DryRun{sharing.DryRunNone, sharing.DryRunClient, sharing.DryRunServer}, dryRun) {
		return fmt.Errorf("invalid --dry-run %q: must be none, client or server", f.dryRun)
	}
	client, err := sharing.NewClient(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
	defer cancel()
	return do(ctx, client, sharing.Options{
		DryRun: dryRun, Wait: f.wait, Progress: progress(cmd),
		Written: func(summary string, object *unstructured.Unstructured) error {
			return printSharedAPI(cmd.OutOrStdout(), output, dryRun, summary, object)
		},
	})
}

// printSharedAPI prints a changed SharedAPI in the format of -o, as kubectl would.
func printSharedAPI(out io.Writer, output string, dryRun sharing.DryRun, summary string, object *unstructured.Unstructured) error {
	switch output {
	case "":
		switch dryRun {
		case sharing.DryRunClient:
			summary += " (dry run)"
		case sharing.DryRunServer:
			summary += " (server dry run)"
		}
		_, err := fmt.Fprintln(out, summary)
		return err
	case "name":
		_, err := fmt.Fprintf(out, "%s/%s\n", "sharedapi."+v1alpha1.Group, object.GetName())
		return err
	}
	shown := object.DeepCopy()
	shown.SetManagedFields(nil) // as kubectl does
	return printStructured(out, output, shown.Object)
}

// readGroups parses the groups in the commands' arguments.
func readGroups(args []string) ([]string, error) {
	groups, err := readNames("API groups", args)
	if err != nil {
		return nil, err
	}
	return groups, sharing.CheckGroups(groups)
}

// readNames parses a comma-separated list with at least one name. where describes its
// source.
func readNames(where string, args []string) ([]string, error) {
	var out []string
	for _, arg := range args {
		for name := range strings.SplitSeq(arg, ",") {
			if name = strings.TrimSpace(name); name == "" {
				return nil, fmt.Errorf("%s: %q has an empty name", where, arg)
			}
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no name specified", where)
	}
	return out, nil
}
