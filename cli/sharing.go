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

// sharing reads and writes SharedAPIs for the commands about them.
type sharing struct {
	host     string
	dynamic  dynamic.Interface
	metadata metadata.Interface
	dryRun   string
	out      io.Writer
	tell     func(string)
}

// The values of --dry-run; kubectl's.
const (
	dryRunNone   = "none"
	dryRunClient = "client"
	dryRunServer = "server"
)

const dryRunFlag = "Say what would change and change nothing: none, client, or server, which has Atoll check it too."

func newSharing(config *rest.Config, dryRun string, out io.Writer, tell func(string)) (*sharing, error) {
	if !slices.Contains([]string{dryRunNone, dryRunClient, dryRunServer}, dryRun) {
		return nil, fmt.Errorf("unknown --dry-run %q: it takes none, client or server", dryRun)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	meta, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Atoll: %w", err)
	}
	return &sharing{host: config.Host, dynamic: dyn, metadata: meta, dryRun: dryRun, out: out, tell: tell}, nil
}

// readGroups takes apart the arguments of the commands.
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
			return nil, fmt.Errorf("%s names version %s: all versions of a group are exposed; write %s", group, version, name)
		case !strings.Contains(group, "."), scheme.Scheme.IsGroupRegistered(group), slices.Contains(builtIn, group):
			return nil, fmt.Errorf("%s is not a group of custom resources: clusters have Kubernetes' own groups themselves, and others contain a dot", group)
		}
		if problems := validation.IsDNS1123Subdomain(group); len(problems) > 0 {
			return nil, fmt.Errorf("%q cannot be an API group: %s", group, problems[0])
		}
	}
	return groups, nil
}

// readNames reads names that are separated by commas, at least one; where says from
// what.
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
		return nil, fmt.Errorf("%s: no name is given", where)
	}
	return out, nil
}

// read gives what Atoll has at the moment.
func (s *sharing) read(ctx context.Context) (present, error) {
	var out present
	shared, err := s.dynamic.Resource(v1alpha1.SharedAPIResource).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return out, fmt.Errorf("%s knows no SharedAPIs: is this an Atoll server? Name its kubeconfig with --atoll-kubeconfig", s.host)
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
	// Their names alone: the schemas of hundreds are tens of megabytes.
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

// write makes a change and gives the SharedAPI as it is then; of a deleted one, as
// it was.
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
	case c.was == nil:
		now, err = api.Create(ctx, now, metav1.CreateOptions{DryRun: dry, FieldValidation: metav1.FieldValidationStrict})
		if apierrors.IsAlreadyExists(err) {
			err = changedMeanwhile(c.name)
		}
	case c.spec == nil && c.was.DeletionTimestamp != nil: // deleted by somebody before
	case c.spec == nil:
		err = s.unlessEdited(ctx, c.was, func(version string) error {
			return api.Delete(ctx, c.name, metav1.DeleteOptions{DryRun: dry, Preconditions: &metav1.Preconditions{UID: &c.was.UID, ResourceVersion: &version}})
		})
		if apierrors.IsNotFound(err) {
			err = nil
		}
	default:
		err = s.unlessEdited(ctx, c.was, func(version string) error {
			patch, err := json.Marshal(map[string]any{
				"metadata": map[string]any{"uid": c.was.UID, "resourceVersion": version},
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

// proposed is the SharedAPI after a change, as far as a client knows.
func proposed(c change) (*unstructured.Unstructured, error) {
	if c.was == nil {
		spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(c.spec)
		if err != nil {
			return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
		}
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": v1alpha1.Group + "/" + v1alpha1.Version, "kind": "SharedAPI",
			"metadata": map[string]any{"name": c.name}, "spec": spec,
		}}, nil
	}
	now := c.was.DeepCopy()
	if c.spec != nil {
		now.Spec = *c.spec
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(now)
	if err != nil {
		return nil, fmt.Errorf("encode SharedAPI %s: %w", c.name, err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// unlessEdited writes under the version that was read, and again if only the status
// has moved since: with many clusters it moves all the time.
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
			return conflict // over something else
		}
		version = now.ResourceVersion
	}
}

func changedMeanwhile(name string) error {
	return fmt.Errorf("somebody changed it at the same time: see `kubectl get sharedapi %s -o yaml`, and try again", name)
}

// get gives a SharedAPI, nil if there is none.
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

// say prints what became of a SharedAPI, as kubectl would.
func (s *sharing) say(c change) {
	verb := "configured"
	switch {
	case c.was == nil:
		verb = "created"
	case c.spec == nil:
		verb = "deleted"
	case !c.edits():
		verb = "unchanged"
	}
	line := "sharedapi/" + c.name + " " + verb
	if len(c.news) > 0 {
		line += ": " + strings.Join(c.news, "; ")
	}
	switch s.dryRun {
	case dryRunClient:
		line += " (dry run)"
	case dryRunServer:
		line += " (server dry run)"
	}
	fmt.Fprintln(s.out, line)
}

// errPending: the time was up, or waiting was of no use, before all clusters were as
// they should be.
var errPending = errors.New("not in all clusters")

// await follows a change until all its clusters are as they should be. The report
// of those that are not comes with errPending.
func (s *sharing) await(ctx context.Context, c change, written *unstructured.Unstructured, gone bool) (report string, err error) {
	f := follow(c, written.GetGeneration(), gone)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	var pending []string
	var trouble error
	for {
		now, err := s.get(ctx, c.name)
		switch {
		case err != nil && ctx.Err() == nil:
			trouble = err // a server that restarts comes back
		case err == nil:
			trouble = nil
			if now != nil && now.UID != written.GetUID() {
				now = nil
			}
			if now == nil && !gone {
				return "", fmt.Errorf("SharedAPI %s was deleted by somebody meanwhile", c.name)
			}
			at := time.Now()
			for _, line := range f.look(at, now) {
				s.tell(line)
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
			if trouble != nil {
				reports = append(reports, "  "+trouble.Error())
			}
			if len(reports) == 0 {
				reports = append(reports, fmt.Sprintf("  SharedAPI %s is still there: `kubectl get sharedapi %s -o yaml` shows which finalizers hold it", c.name, c.name))
			}
			return strings.Join(reports, "\n"), errPending
		case <-ticker.C:
		}
	}
}
