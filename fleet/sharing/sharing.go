// Package sharing exposes API groups of the control plane in clusters, and withdraws them. It computes
// the changes of SharedAPIs, writes them, and waits until the clusters have followed. It imports the
// API types and fleet/names, and no controller: the controller of SharedAPIs is fleet/expose.
package sharing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Client reads and writes the SharedAPIs of one Atoll.
type Client struct {
	host     string
	dynamic  dynamic.Interface
	metadata metadata.Interface
}

// NewClient returns a Client of the Atoll that config connects to.
func NewClient(config *rest.Config) (*Client, error) {
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	return &Client{host: config.Host, dynamic: dyn, metadata: meta}, nil
}

// DryRun says how far a change goes, with kubectl's names.
type DryRun string

// Values of DryRun. The empty value is DryRunNone.
const (
	// DryRunNone makes the change.
	DryRunNone DryRun = "none"
	// DryRunClient writes nothing.
	DryRunClient DryRun = "client"
	// DryRunServer has the server validate the change without storing it.
	DryRunServer DryRun = "server"
)

// Options of a change. With a dry run, nothing is waited for.
type Options struct {
	DryRun DryRun
	// Wait until the clusters have followed, or the context ends.
	Wait bool
	// Written, if set, is called with each SharedAPI after it was written, or would have been in a
	// dry run, and before its clusters are waited for. summary says what changed, as kubectl does.
	// An object that was deleted is passed as it was before.
	Written func(summary string, object *unstructured.Unstructured) error
	// Progress, if set, is called with a line for each warning and each step of a cluster.
	Progress func(string)
}

func (o Options) progress(line string) {
	if o.Progress != nil {
		o.Progress(line)
	}
}

func (o Options) written(c change, object *unstructured.Unstructured) error {
	if o.Written == nil {
		return nil
	}
	return o.Written(c.summary(), object)
}

func (o Options) dry() bool { return o.DryRun != "" && o.DryRun != DryRunNone }

// CheckGroups returns an error if one of these is not the name of a group of custom resources.
func CheckGroups(groups []string) error {
	builtIn := []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}
	for _, group := range groups {
		name, version, versioned := strings.Cut(group, "/")
		switch {
		case versioned:
			return fmt.Errorf("%s has the version %s: a group is exposed with all its versions; use %s", group, version, name)
		case !strings.Contains(group, "."), scheme.Scheme.IsGroupRegistered(group), slices.Contains(builtIn, group):
			return fmt.Errorf("%s is not a group of custom resources: clusters serve Kubernetes' own groups themselves, and other groups contain a dot", group)
		}
		if problems := validation.IsDNS1123Subdomain(group); len(problems) > 0 {
			return fmt.Errorf("%q is not a valid API group: %s", group, problems[0])
		}
	}
	return nil
}

// Expose creates or extends the SharedAPI of some groups.
func (s *Client) Expose(ctx context.Context, ask Exposure, o Options) error {
	what := strings.Join(ask.Groups, ", ")
	now, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	c, err := now.expose(ask)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	doubts, waits := now.warnings(c)
	for _, doubt := range doubts {
		o.progress("warning: " + doubt)
	}
	written, err := s.write(ctx, c, o.DryRun)
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	if err := o.written(c, written); err != nil {
		return err
	}
	if o.dry() || !o.Wait || !waits {
		return nil
	}
	report, err := s.await(ctx, c, written, false, o.progress)
	if errors.Is(err, errPending) {
		return fmt.Errorf("expose %s: not all clusters serve it yet\n%s\nSharedAPI %s remains and is still being rolled out; run `kubectl describe sharedapi %s` to see its progress",
			what, report, c.name, c.name)
	}
	if err != nil {
		return fmt.Errorf("expose %s: %w", what, err)
	}
	return nil
}

// Unexpose narrows or deletes the SharedAPIs of some groups. from are the clusters to withdraw the
// groups from; nil means all of them.
func (s *Client) Unexpose(ctx context.Context, groups, from []string, o Options) error {
	what := strings.Join(groups, ", ")
	now, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("unexpose %s: %w", what, err)
	}
	changes, err := now.withdraw(groups, from)
	if err != nil {
		return fmt.Errorf("unexpose %s: %w", what, err)
	}
	type withdrawal struct {
		change
		written *unstructured.Unstructured
	}
	var all []withdrawal
	for _, c := range changes {
		written, err := s.write(ctx, c, o.DryRun)
		if err != nil {
			return fmt.Errorf("unexpose %s: %w", what, err)
		}
		if err := o.written(c, written); err != nil {
			return err
		}
		all = append(all, withdrawal{c, written})
	}
	if o.dry() {
		return nil
	}
	o.progress("the objects stay in Atoll")
	if !o.Wait {
		return nil
	}
	var reports []string
	for _, w := range all {
		report, err := s.await(ctx, w.change, w.written, true, o.progress)
		switch {
		case errors.Is(err, errPending):
			reports = append(reports, report)
		case err != nil:
			return fmt.Errorf("unexpose %s: %w", what, err)
		}
	}
	if len(reports) > 0 {
		return fmt.Errorf("unexpose %s: not all clusters are clean yet\n%s\nThe removal continues in the background", what, strings.Join(reports, "\n"))
	}
	return nil
}
