package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/atoll-dev/atoll/api/fleet/v1alpha1"
)

// sharing reads and writes SharedAPIs for expose and unexpose.
type sharing struct {
	host     string
	dynamic  dynamic.Interface
	metadata metadata.Interface
	dryRun   string
	out      io.Writer
	progress func(string)
}

// Values of --dry-run, as in kubectl.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

const dryRunFlag = "Must be none, client or server. client only prints what would change; server also validates it in Atoll, without storing it."

func newSharing(config *rest.Config, dryRun string, out io.Writer, tell func(string)) (*sharing, error) {
	if !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, dryRun) {
		return nil, fmt.Errorf("invalid --dry-run %q: must be none, client or server", dryRun)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client for Atoll: %w", err)
	}
	return &sharing{host: config.Host, dynamic: dyn, metadata: meta, dryRun: dryRun, out: out, progress: tell}, nil
}

// readGroups parses the groups in the commands' arguments.
func readGroups(args []string) ([]string, error) {
	groups, err := readNames("API groups", args)
	if err != nil {
		return nil, err
	}
	builtIn := []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}
	for _, group := range groups {
		name, version, versioned := strings.Cut(group, "/")
		switch {
		case versioned:
			return nil, fmt.Errorf("%s has the version %s: a group is exposed with all its versions; use %s", group, version, name)
		case !strings.Contains(group, "."), scheme.Scheme.IsGroupRegistered(group), slices.Contains(builtIn, group):
			return nil, fmt.Errorf("%s is not a group of custom resources: clusters serve Kubernetes' own groups themselves, and other groups contain a dot", group)
		}
		if problems := validation.IsDNS1123Subdomain(group); len(problems) > 0 {
			return nil, fmt.Errorf("%q is not a valid API group: %s", group, problems[0])
		}
	}
	return groups, nil
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

// read reads Atoll's current state.
func (s *sharing) read(ctx context.Context) (sharingState, error) {
	var out sharingState
	shared, err := s.dynamic.Resource(v1alpha1.SharedAPIResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return out, fmt.Errorf("%s does not serve SharedAPIs and may not be an Atoll server: set --atoll-kubeconfig", s.host)
	}
	if err != nil {
		return out, fmt.Errorf("list SharedAPIs: %w", err)
	}
	if out.shared, err = typed[v1alpha1.SharedAPI](shared); err != nil {
		return out, err
	}
	clusters, err := s.dynamic.Resource(v1alpha1.ClusterResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return out, fmt.Errorf("list the clusters: %w", err)
	}
	if out.clusters, err = typed[v1alpha1.Cluster](clusters); err != nil {
		return out, err
	}
	// Only metadata: the schemas of hundreds of CRDs are tens of megabytes.
	crds, err := s.metadata.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return out, nil
	case err != nil:
		return out, fmt.Errorf("list CustomResourceDefinitions: %w", err)
	}
	out.crds = []string{}
	for i := range crds.Items {
		out.crds = append(out.crds, crds.Items[i].Name)
	}
	return out, nil
}

func typed[T any](list *unstructured.UnstructuredList) ([]*T, error) {
	var out []*T
	for i := range list.Items {
		t := new(T)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, t); err != nil {
			return nil, fmt.Errorf("read %s %s: %w", list.Items[i].GetKind(), list.Items[i].GetName(), err)
		}
		out = append(out, t)
	}
	return out, nil
}

// write makes a change and returns the resulting SharedAPI, or the previous one if the
// change deletes it.
func (s *sharing) write(ctx context.Context, c change) (*unstructured.Unstructured, error) {
	api := s.dynamic.Resource(v1alpha1.SharedAPIResource)
	now, err := proposed(c)
	if err != nil || !c.edits() || s.dryRun == dryRunClient {
		return now, err
	}
	var dry []string
	if s.dryRun == dryRunServer {
		dry = []string{metav1.DryRunAll}
	}
	switch {
	case c.old == nil:
		now, err = api.Create(ctx, now, metav1.CreateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
		if apierrors.IsAlreadyExists(err) {
			err = changedMeanwhile(c.name)
		}
	case c.spec == nil && c.old.DeletionTimestamp != nil: // already deleted by another client
	case c.spec == nil:
		err = s.unlessEdited(ctx, c.old, func(version string) error {
			return api.Delete(ctx, c.name, metav1.DeleteOptions{DryRun: dry, Preconditions: &metav1.Preconditions{UID: &c.old.UID, ResourceVersion: &version}})
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	default:
		err = s.unlessEdited(ctx, c.old, func(version string) error {
			patch, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"uid": c.old.UID, "resourceVersion": version},
				"spec":     c.spec,
			})
			if err != nil {
				return err
			}
			patched, err := api.Patch(ctx, c.name, types.MergePatchType, patch, metav1.PatchOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
			if err == nil {
				now = patched
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("write SharedAPI %s: %w", c.name, err)
	}
	return now, nil
}

// proposed returns the SharedAPI after a change, as far as a client can tell.
func proposed(c change) (*unstructured.Unstructured, error) {
	if c.old == nil {
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.spec)
		if err != nil {
			return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "SharedAPI",
			"metadata": map[string]any{"name": c.name}, "spec": spec,
		}}, nil
	}
	now := c.old.DeepCopy()
	if c.spec != nil {
		now.Spec = *c.spec
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(now)
	if err != nil {
		return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// unlessEdited writes with the resourceVersion that was read. On a conflict it retries
// if only the status has changed: with many clusters that changes all the time.
func (s *sharing) unlessEdited(ctx context.Context, was *v1alpha1.SharedAPI, write func(version string) error) error {
	for version := was.ResourceVersion; ; {
		conflict := write(version)
		if !apierrors.IsConflict(conflict) {
			return conflict
		}
		now, err := s.get(ctx, was.Name)
		if err != nil {
			return err
		}
		if now == nil || now.UID != was.UID || now.DeletionTimestamp != nil || !equality.Semantic.DeepEqual(now.Spec, was.Spec) {
			return changedMeanwhile(was.Name)
		}
		if now.ResourceVersion == version {
			return conflict // another field changed
		}
		version = now.ResourceVersion
	}
}

func changedMeanwhile(name string) error {
	return fmt.Errorf("the object was modified concurrently: check `kubectl get sharedapi %s -o yaml` and try again", name)
}

// get returns a SharedAPI, or nil if it does not exist.
func (s *sharing) get(ctx context.Context, name string) (*v1alpha1.SharedAPI, error) {
	u, err := s.dynamic.Resource(v1alpha1.SharedAPIResource).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get SharedAPI %s: %w", name, err)
	}
	out := &v1alpha1.SharedAPI{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, out); err != nil {
		return nil, fmt.Errorf("read SharedAPI %s: %w", name, err)
	}
	return out, nil
}

// printResult prints the result of a change, as kubectl would.
func (s *sharing) printResult(c change) {
	verb := "configured"
	switch {
	case c.old == nil:
		verb = "created"
	case c.spec == nil:
		verb = "deleted"
	case !c.edits():
		verb = "unchanged"
	}
	line := "sharedapi/" + c.name + " " + verb
	if len(c.diff) > 0 {
		line += ": " + strings.Join(c.diff, "; ")
	}
	switch s.dryRun {
	case dryRunClient:
		line += " (dry run)"
	case dryRunServer:
		line += " (server dry run)"
	}
	fmt.Fprintln(s.out, line)
}

// errPending means that the timeout expired, or further waiting was useless, before all
// clusters reached the desired state.
var errPending = errors.New("not all clusters are ready")

// await waits until all clusters of a change have reached the desired state. Otherwise
// it returns errPending and a report on the pending clusters.
func (s *sharing) await(ctx context.Context, c change, written *unstructured.Unstructured, gone bool) (report string, err error) {
	f := newFollower(c, written.GetGeneration(), gone)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var pending []string
	var lastErr error
	for {
		now, err := s.get(ctx, c.name)
		switch {
		case err != nil && ctx.Err() == nil:
			lastErr = err // a server that restarts comes back
		case err == nil:
			lastErr = nil
			if now != nil && now.UID != written.GetUID() {
				now = nil
			}
			if now == nil && !gone {
				return "", fmt.Errorf("SharedAPI %s was deleted by another client", c.name)
			}
			at := time.Now()
			for _, line := range f.observe(at, now) {
				s.progress(line)
			}
			pending = f.pending(now)
			if len(pending) == 0 && (!gone || c.spec != nil || now == nil) {
				return "", nil
			}
			if len(pending) > 0 && f.hopeless(at, pending) {
				return f.report(pending), errPending
			}
		}
		select {
		case <-ctx.Done():
			var reports []string
			if len(pending) > 0 {
				reports = append(reports, f.report(pending))
			}
			if lastErr != nil {
				reports = append(reports, "  "+lastErr.Error())
			}
			if len(reports) == 0 {
				reports = append(reports, fmt.Sprintf("  SharedAPI %s still exists: run `kubectl get sharedapi %s -o yaml` to see its finalizers", c.name, c.name))
			}
			return strings.Join(reports, "\n"), errPending
		case <-ticker.C:
		}
	}
}
