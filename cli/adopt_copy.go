package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
	"github.com/atoll-dev/atoll/fleet/join"
)

// copying has the flags of `atoll adopt --from`.
type copying struct {
	from, memberKubeconfig, memberContext, output string
	dependencies                                  bool
}

// check checks the flags that only --from allows, and those that it excludes.
func (c *copying) check(cmd *cobra.Command, a *adoption, args []string) error {
	if c.from == "" {
		for _, flag := range []string{"member-kubeconfig", "member-context", "dependencies", "output"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--%s is only valid with --from", flag)
			}
		}
		return nil
	}
	switch {
	case a.all || a.allNamespaces || a.cluster != "":
		return errors.New("--all, -A and --cluster select conflicts, so they cannot be combined with --from: name the objects, or select them with kinds and -l")
	case len(args) == 0:
		return errors.New("no objects specified: name them as KIND/NAME, or select them as KIND[,KIND...] -l SELECTOR")
	case c.memberContext != "" && c.memberKubeconfig == "":
		return errors.New("--member-context needs a kubeconfig: set --member-kubeconfig, too")
	case c.output != "" && a.dryRun != "client":
		return errors.New("-o prints what would be copied: set --dry-run=client, too")
	}
	if c.output != "" {
		if err := checkFormat(c.output, "json", "yaml"); err != nil {
			return err
		}
	}
	for _, arg := range args {
		if named := strings.Contains(arg, "/"); named == (a.selector != "") {
			return fmt.Errorf("%q: name objects as KIND/NAME, or select them as KIND[,KIND...] -l SELECTOR", arg)
		}
	}
	return nil
}

func (c *copying) run(cmd *cobra.Command, a *adoption, args []string) error {
	ctx := cmd.Context()
	atoll, err := newFleetReader(&a.atoll)
	if err != nil {
		return err
	}
	options, err := c.options(atoll, a, args)
	if err != nil {
		return err
	}
	own, err := c.memberConfig()
	if err != nil {
		return err
	}
	member, err := join.OpenMember(ctx, atoll.dynamic, c.from, own)
	if err != nil {
		return err
	}
	plan, err := join.PlanCopy(ctx, atoll.dynamic, atoll.mapper, member, options)
	if err != nil {
		return err
	}
	if c.output != "" {
		c.notes(cmd.ErrOrStderr(), plan)
		return printStructured(cmd.OutOrStdout(), c.output, plan.Manifests())
	}
	return c.execute(ctx, cmd, a.dryRun, plan)
}

// options resolves the arguments. Kinds are resolved in Atoll, which has to serve them.
func (c *copying) options(atoll *fleetReader, a *adoption, args []string) (join.CopyOptions, error) {
	o := join.CopyOptions{Dependencies: c.dependencies}
	var err error
	if o.Namespace, err = a.atoll.namespace(a.namespace); err != nil {
		return o, err
	}
	if a.selector != "" {
		if o.Selector, err = labels.Parse(a.selector); err != nil {
			return o, fmt.Errorf("-l %s: %w", a.selector, err)
		}
	}
	for _, arg := range args {
		for _, kind := range strings.Split(arg, ",") {
			if o.Selector != nil {
				kind += "/*" // resolve wants a name
			}
			_, gvk, namespaced, name, err := atoll.resolve(kind)
			if err != nil {
				return o, fmt.Errorf("%w. Objects of a custom kind can be copied when Atoll has the type: apply its CustomResourceDefinition to Atoll first", err)
			}
			if o.Selector != nil {
				o.Kinds = append(o.Kinds, gvk.GroupKind())
				continue
			}
			one := join.Name{GroupKind: gvk.GroupKind(), NamespacedName: types.NamespacedName{Namespace: o.Namespace, Name: name}}
			if !namespaced {
				one.Namespace = ""
			}
			o.Named = append(o.Named, one)
		}
	}
	return o, nil
}

// memberConfig returns how to reach the cluster, nil for the kubeconfig that Atoll has.
func (c *copying) memberConfig() (*rest.Config, error) {
	if c.memberKubeconfig == "" {
		return nil, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: c.memberKubeconfig}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: c.memberContext}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load the kubeconfig of cluster %s: %w: set --member-kubeconfig to a file that has access to it, and --member-context to a context in it", c.from, err)
	}
	config.UserAgent = "atoll"
	return config, nil
}

func (c *copying) execute(ctx context.Context, cmd *cobra.Command, dryRun string, plan *join.CopyPlan) error {
	out := cmd.OutOrStdout()
	for _, name := range plan.Done {
		fmt.Fprintf(out, "%s was copied from %s before\n", name, c.from)
	}
	var err error
	switch dryRun {
	case "none":
		err = plan.Create(ctx, func(one join.Copy) { c.line(out, one, "") })
	case "server":
		if err = plan.Check(ctx); errors.Is(err, join.ErrUnchecked) {
			fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", err)
			err = nil
		}
		fallthrough
	default:
		for _, one := range plan.Copies {
			if err == nil {
				c.line(out, one, " ("+map[string]string{"client": "dry run", "server": "server dry run"}[dryRun]+")")
			}
		}
	}
	if err != nil {
		return err
	}
	c.notes(cmd.ErrOrStderr(), plan)
	if dryRun == "none" && len(plan.Copies) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "Copied objects stay in %s until you remove their label %s. `kubectl get resourcebindings` shows whether %s has taken them over.\n", c.from, v1alpha1.ClusterLabel, c.from)
	}
	return nil
}

func (c *copying) line(out io.Writer, one join.Copy, suffix string) {
	by := ""
	if one.NeededBy != nil {
		by = fmt.Sprintf(", for %s,", *one.NeededBy)
	}
	fmt.Fprintf(out, "%s%s copied from %s and taken over there%s\n", one.Name, by, c.from, suffix)
}

func (c *copying) notes(out io.Writer, plan *join.CopyPlan) {
	for _, note := range plan.Notes {
		fmt.Fprintf(out, "note: %s\n", note)
	}
}
