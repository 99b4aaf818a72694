package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/atoll-dev/atoll/fleet/moving"
)

var errBothNamespaces = errors.New("--all-namespaces and --namespace exclude each other")

// transitionRequest is a command that requests something of the transitions of objects.
type transitionRequest struct {
	use, short, long, example string
	do                        func(context.Context, *moving.Client, moving.Object) (done string, err error)
}

func newPauseCommand() *cobra.Command {
	r := transitionRequest{use: "pause", short: "Pause the transitions of objects between clusters",
		long: `Pause the transitions of objects between clusters: no step is made until atoll resume. What runs
keeps running where it is. The setting is part of the object's annotation
fleet.atoll.dev/transition, and also holds for later transitions.`,
		example: `  atoll pause deployment/web -n shop`,
		do: func(ctx context.Context, c *moving.Client, o moving.Object) (string, error) {
			return c.Pause(ctx, o)
		}}
	return r.command()
}

func newResumeCommand() *cobra.Command {
	r := transitionRequest{use: "resume", short: "Resume paused transitions of objects",
		long: `Resume paused transitions of objects. If the object's policy pauses them, the object is made an
exception from it.`,
		example: `  atoll resume deployment/web -n shop`,
		do: func(ctx context.Context, c *moving.Client, o moving.Object) (string, error) {
			return c.Resume(ctx, o)
		}}
	return r.command()
}

func newAbortCommand() *cobra.Command {
	r := transitionRequest{use: "abort", short: "Make objects return to the clusters that they are leaving",
		long: `Make objects return to the clusters that they are leaving. The clusters that they were going to are
avoided for a time, or until atoll retry or a change of the object. atoll transitions shows the
way back, with the cause RolledBack.`,
		example: `  atoll abort deployment/web -n shop`,
		do: func(ctx context.Context, c *moving.Client, o moving.Object) (string, error) {
			return c.Abort(ctx, o)
		}}
	return r.command()
}

func newRetryCommand() *cobra.Command {
	r := transitionRequest{use: "retry", short: "Try clusters again that objects avoid",
		long: `Try clusters again that objects avoid, because a transition to them failed or was aborted. Without
this, they are tried again when the object changes, or after a time that gets longer with each
failure.`,
		example: `  atoll retry deployment/web -n shop`,
		do: func(ctx context.Context, c *moving.Client, o moving.Object) (string, error) {
			return c.Retry(ctx, o, time.Now())
		}}
	return r.command()
}

func (r *transitionRequest) command() *cobra.Command {
	var (
		atoll     target
		namespace string
		dryRun    bool
	)
	cmd := &cobra.Command{
		Use:     r.use + " KIND/NAME...",
		Short:   r.short,
		Long:    r.long,
		Example: r.example,
		Args:    cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("no objects specified: name them as KIND/NAME, such as deployment/web. `atoll transitions -A` lists those in transition")
			}
			f, err := newFleetReader(&atoll)
			if err != nil {
				return err
			}
			if namespace, err = atoll.namespace(namespace); err != nil {
				return err
			}
			client := &moving.Client{Dynamic: f.dynamic, DryRun: dryRun}
			var failed []error
			for _, arg := range args {
				o, err := f.object(arg, namespace)
				if err == nil {
					err = r.run(cmd, f, client, o)
				}
				failed = append(failed, err)
			}
			return errors.Join(failed...)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&namespace, "namespace", "n", "", "Namespace of the objects. The default is the kubeconfig context's namespace, or default.")
	addServerDryRun(flags, &dryRun)
	atoll.addPlainFlags(flags)
	return cmd
}

func (r *transitionRequest) run(cmd *cobra.Command, f *fleetReader, c *moving.Client, o moving.Object) error {
	done, err := r.do(cmd.Context(), c, o)
	if apierrors.IsNotFound(err) {
		return f.noSuchObject(cmd.Context(), o.Resource, o.Kind.Kind, o.Namespace, o.Name)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s %s%s\n", o.Argument(), done, dryRunNote(c.DryRun))
	return nil
}

// object returns the object that KIND/NAME names.
func (f *fleetReader) object(arg, namespace string) (moving.Object, error) {
	gvr, gvk, namespaced, name, err := f.resolve(arg)
	if err != nil {
		return moving.Object{}, err
	}
	if !namespaced {
		namespace = ""
	}
	return moving.Object{Resource: gvr, Kind: gvk.GroupKind(), Namespace: namespace, Name: name}, nil
}

// serverDryRun is kubectl's --dry-run, as far as commands have it that need the server for an answer.
type serverDryRun struct{ is *bool }

func (d serverDryRun) String() string {
	if d.is != nil && *d.is {
		return "server"
	}
	return "none"
}

func (d serverDryRun) Set(value string) error {
	switch value {
	case "server", "client", "true":
		*d.is = true
	case "none", "false":
		*d.is = false
	default:
		return errors.New("must be none or server")
	}
	return nil
}

func (serverDryRun) Type() string { return "string" }

// addServerDryRun adds --dry-run. Without a value it means server.
func addServerDryRun(flags *pflag.FlagSet, is *bool) {
	flags.Var(serverDryRun{is}, "dry-run", "Must be none or server. With server, which is meant without a value too, the request is validated in Atoll and nothing is stored.")
	flags.Lookup("dry-run").NoOptDefVal = "server"
}

func dryRunNote(is bool) string {
	if is {
		return " (server dry run)"
	}
	return ""
}
