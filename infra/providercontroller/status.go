package providercontroller

import (
	"context"
	"fmt"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/atoll-dev/atoll/api/infra/v1alpha1"
	"github.com/atoll-dev/atoll/infra/packages"
	"github.com/atoll-dev/atoll/infra/schema"
)

// progressInterval is the interval at which the progress of a download is written.
const progressInterval = 5 * time.Second

// maxMessage bounds a status message.
const maxMessage = 1500

// localStatus is what this server knows about a Provider.
type localStatus struct {
	server string
	// installed is the package that matches the spec, nil if it is not installed.
	installed   *packageRecord
	containment *v1alpha1.ProviderContainment // of the installed package, nil if it is not contained
	failure     *failure
	step        string // progress of the installation
	lastVersion string // version whose types are served although it does not match the spec
	// serving is nil if no types are served; denied then has the reason.
	serving  *servedGroup
	denied   *denial
	protocol int
	refused  string // why the API does not serve the group
}

// localStatusOf returns what this server knows about a Provider.
func (r *Registry) localStatusOf(name string) (localStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[name]
	if e == nil {
		return localStatus{}, false
	}
	o := localStatus{server: r.config.Server, failure: e.failure, step: e.step}
	for _, s := range r.table.groups {
		if s.Group.Provider == name {
			o.serving, o.refused = s, r.rejectedGroups[s.Group.Name]
		}
	}
	if why, ok := r.table.denied[name]; ok {
		o.denied = &why
	}
	switch {
	case e.usable:
		o.installed, o.containment = &e.pack.packageRecord, e.pack.containment
	case e.failure != nil && e.failure.installed != nil:
		o.installed = e.failure.installed
	}
	if e.pack != nil {
		o.protocol = e.pack.catalog.Protocol()
		if !e.usable {
			o.lastVersion = e.pack.Version
		}
	}
	return o, true
}

// conditions returns the conditions from this server's point of view.
func (o localStatus) conditions() (installed, served metav1.Condition) {
	installed = metav1.Condition{Type: v1alpha1.ProviderInstalled, Status: metav1.ConditionFalse}
	switch {
	case o.installed != nil:
		installed.Status, installed.Reason = metav1.ConditionTrue, v1alpha1.ReasonInstalled
		installed.Message = fmt.Sprintf("version %s from %s, by %s", o.installed.Version, o.installed.From, o.server)
	case o.failure != nil:
		installed.Reason, installed.Message = o.failure.reason, o.server+": "+o.failure.message
	default:
		installed.Reason, installed.Message = v1alpha1.ReasonInstalling, o.server+": installation in progress"
		if o.step != "" {
			installed.Message = o.server + ": " + o.step
		}
	}
	served = metav1.Condition{Type: v1alpha1.ProviderServed, Status: metav1.ConditionFalse}
	of := ""
	if o.lastVersion != "" {
		of = fmt.Sprintf(", as of version %s, which was installed before", o.lastVersion)
	}
	switch {
	case o.refused != "":
		served.Reason, served.Message = v1alpha1.ReasonGroupTaken, o.refused
	case o.denied != nil:
		served.Reason, served.Message = o.denied.reason, o.denied.message
	case o.failure != nil && (o.failure.reason == v1alpha1.ReasonDoesNotStart || o.failure.reason == v1alpha1.ReasonNotContained):
		served.Reason, served.Message = o.failure.reason, o.server+": "+o.failure.message
		if o.lastVersion != "" {
			served.Message += "; its types stay served" + of
		}
	case o.serving != nil:
		served.Status, served.Reason = metav1.ConditionTrue, v1alpha1.ReasonServed
		served.Message = fmt.Sprintf("%d resource types and %d data sources are served in %s%s", o.serving.resources, o.serving.data, o.serving.Group.Name, of)
		if len(o.serving.unmatched) > 0 {
			served.Message += fmt.Sprintf("; spec.types: no type matches %s; the provider has %s", summarize(o.serving.unmatched), summarize(typesOf(o.serving.all)))
		}
	default:
		served.Reason, served.Message = v1alpha1.ReasonNotInstalled, o.server+": the package is not installed; see condition Installed"
	}
	return installed, served
}

// mergeInto updates a status with this server's knowledge and reports whether it changed.
//
// All servers write. A server on which the Provider works wins: one with a failure leaves the
// status alone, unless it wrote it itself. Among failing servers the last writer wins. No server
// writes only because another one did.
func (o localStatus) mergeInto(status *v1alpha1.ProviderStatus, generation int64, group string, now metav1.Time) bool {
	before := status.DeepCopy()
	installed, served := o.conditions()
	if o.mayWrite(status, installed, generation) {
		setCondition(status, installed, generation, now)
		if o.installed != nil {
			status.Digest, status.Signature = o.installed.Content, o.installed.Signature
		}
	}
	if o.installed != nil && o.isOwn(status) {
		// Also if the status is otherwise unchanged: the server may run on another kernel since.
		status.Containment = o.containment
	}
	if o.mayWrite(status, served, generation) {
		setCondition(status, served, generation, now)
		status.Group, status.ResourceTypes, status.DataSources = group, 0, 0
		if o.serving != nil {
			status.ResourceTypes, status.DataSources = int32(o.serving.resources), int32(o.serving.data)
		}
		if o.protocol != 0 {
			status.Protocol = int32(o.protocol)
		}
	}
	if status.ObservedGeneration < generation {
		status.ObservedGeneration = generation
	}
	return !apiequality.Semantic.DeepEqual(before, status)
}

func (o localStatus) mayWrite(status *v1alpha1.ProviderStatus, c metav1.Condition, generation int64) bool {
	was := meta.FindStatusCondition(status.Conditions, c.Type)
	if was == nil || was.ObservedGeneration < generation {
		return true
	}
	if was.ObservedGeneration > generation {
		return false // another server has observed a later spec
	}
	good := was.Status == metav1.ConditionTrue
	switch c.Status {
	case metav1.ConditionTrue:
		// Any server's report on the package is enough. The number of types is the same on all servers.
		return !good || c.Type == v1alpha1.ProviderServed && was.Message != c.Message && !strings.Contains(c.Message, "installed before")
	default:
		return !good || o.appliesToAll(c) || o.isOwn(status)
	}
}

// appliesToAll reports whether a condition is the same on every server.
func (o localStatus) appliesToAll(c metav1.Condition) bool {
	switch c.Reason {
	case v1alpha1.ReasonTypeTaken, v1alpha1.ReasonGroupTaken, v1alpha1.ReasonNoTypes, v1alpha1.ReasonInvalid:
		return true
	}
	return false
}

// isOwn reports whether this server reported the package as installed.
func (o localStatus) isOwn(status *v1alpha1.ProviderStatus) bool {
	was := meta.FindStatusCondition(status.Conditions, v1alpha1.ProviderInstalled)
	return was == nil || was.Status != metav1.ConditionTrue || strings.HasSuffix(was.Message, ", by "+o.server)
}

func setCondition(status *v1alpha1.ProviderStatus, c metav1.Condition, generation int64, now metav1.Time) {
	c.ObservedGeneration, c.LastTransitionTime = generation, now
	c.Message = truncate(c.Message)
	meta.SetStatusCondition(&status.Conditions, c)
}

func truncate(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	return strings.ToValidUTF8(text[:maxMessage], "") + "…"
}

// writeStatusOf writes a Provider's status if it has changed. It compares with the live Provider: the
// cached one may lack the last write, and a status that returns to an earlier one would not be written.
func (r *Registry) writeStatusOf(ctx context.Context, p *v1alpha1.Provider) error {
	o, ok := r.localStatusOf(p.Name)
	if !ok {
		return nil
	}
	return writeStatus(ctx, r.clients.Dynamic.Resource(v1alpha1.ProviderResource), p, func(status *v1alpha1.ProviderStatus) bool {
		return o.mergeInto(status, p.Generation, schema.Group(p.Name), metav1.NewTime(r.config.Clock.Now()))
	})
}

// reportProgress writes the progress of a download from time to time.
func (r *Registry) reportProgress(ctx context.Context, p *v1alpha1.Provider, now packages.StepProgress) {
	step := fmt.Sprintf("%s: %d MB", now.Step, now.Done>>20)
	if now.Total > 0 {
		step = fmt.Sprintf("%s: %d of %d MB", now.Step, now.Done>>20, now.Total>>20)
	}
	r.mu.Lock()
	e := r.entries[p.Name]
	at := r.config.Clock.Now()
	due := e != nil && at.Sub(e.stepReported) >= progressInterval
	if e != nil {
		e.step = step
		if due {
			e.stepReported = at
		}
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if err := r.writeStatusOf(ctx, p); err != nil {
		r.config.Log.Debug("write installation progress failed", "provider", p.Name, "error", err)
	}
}

// ensureFinalizer keeps a Provider from being removed while anything of its types is stored.
func (r *Registry) ensureFinalizer(ctx context.Context, p *v1alpha1.Provider) error {
	has := func(finalizers []string) bool {
		for _, f := range finalizers {
			if f == v1alpha1.ProviderInUseFinalizer {
				return true
			}
		}
		return false
	}
	if p.DeletionTimestamp != nil || has(p.Finalizers) {
		return nil
	}
	client := r.clients.Dynamic.Resource(v1alpha1.ProviderResource)
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := client.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if live.GetUID() != p.UID || live.GetDeletionTimestamp() != nil || has(live.GetFinalizers()) {
			return nil
		}
		live.SetFinalizers(append(live.GetFinalizers(), v1alpha1.ProviderInUseFinalizer))
		_, err = client.Update(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// writeStatus changes the status of the live Provider, not of the cached one.
func writeStatus(ctx context.Context, client dynamic.NamespaceableResourceInterface, p *v1alpha1.Provider, change func(*v1alpha1.ProviderStatus) bool) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		live, err := client.Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil || live.GetUID() != p.UID {
			return err
		}
		is := &v1alpha1.Provider{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(live.Object, is); err != nil {
			return err
		}
		if !change(&is.Status) {
			return nil
		}
		if err := putStatus(live, &is.Status); err != nil {
			return err
		}
		_, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{})
		return err
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of Provider %s: %w", p.Name, err)
	}
	return nil
}

func putStatus(object *unstructured.Unstructured, status any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	object.Object["status"] = content
	return nil
}
