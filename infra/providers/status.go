package providers

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
	"github.com/atoll-dev/atoll/infra/install"
	"github.com/atoll-dev/atoll/infra/schema"
)

// tellEvery is how often the progress of a download is written.
const tellEvery = 5 * time.Second

// longest is how much of a message a status takes.
const longest = 1500

// opinion is what this server knows of a Provider.
type opinion struct {
	server string
	// installed is what is there as the spec asks for, nil if it is not.
	installed *known
	failure   *failure
	step      string // how far the installation is
	last      string // version of which types are served though it is not what the spec asks for
	// serving is nil if no types are served; denied then says why.
	serving  *serving
	denied   *denial
	protocol int
	refused  string // why the API does not serve the group
}

// opinionOf gathers what is known of a Provider.
func (r *Registry) opinionOf(name string) (opinion, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[name]
	if e == nil {
		return opinion{}, false
	}
	o := opinion{server: r.config.Server, failure: e.failure, step: e.step}
	for _, s := range r.table.groups {
		if s.Group.Provider == name {
			o.serving, o.refused = s, r.refused[s.Group.Name]
		}
	}
	if why, ok := r.table.denied[name]; ok {
		o.denied = &why
	}
	switch {
	case e.usable:
		o.installed = &e.pack.known
	case e.failure != nil && e.failure.installed != nil:
		o.installed = e.failure.installed
	}
	if e.pack != nil {
		o.protocol = e.pack.catalog.Protocol()
		if !e.usable {
			o.last = e.pack.Version
		}
	}
	return o, true
}

// says gives the conditions that this server would write by itself.
func (o opinion) says() (installed, served metav1.Condition) {
	installed = metav1.Condition{Type: v1alpha1.ProviderInstalled, Status: metav1.ConditionFalse}
	switch {
	case o.installed != nil:
		installed.Status, installed.Reason = metav1.ConditionTrue, v1alpha1.ReasonInstalled
		installed.Message = fmt.Sprintf("version %s from %s, by %s", o.installed.Version, o.installed.From, o.server)
	case o.failure != nil:
		installed.Reason, installed.Message = o.failure.reason, o.server+": "+o.failure.message
	default:
		installed.Reason, installed.Message = v1alpha1.ReasonInstalling, o.server+": it is being installed"
		if o.step != "" {
			installed.Message = o.server + ": " + o.step
		}
	}
	served = metav1.Condition{Type: v1alpha1.ProviderServed, Status: metav1.ConditionFalse}
	of := ""
	if o.last != "" {
		of = fmt.Sprintf(", as of version %s, which was installed before", o.last)
	}
	switch {
	case o.refused != "":
		served.Reason, served.Message = v1alpha1.ReasonGroupTaken, o.refused
	case o.denied != nil:
		served.Reason, served.Message = o.denied.reason, o.denied.message
	case o.failure != nil && o.failure.reason == v1alpha1.ReasonDoesNotStart:
		served.Reason, served.Message = v1alpha1.ReasonDoesNotStart, o.server+": "+o.failure.message
		if o.last != "" {
			served.Message += "; its types stay there" + of
		}
	case o.serving != nil:
		served.Status, served.Reason = metav1.ConditionTrue, v1alpha1.ReasonServed
		served.Message = fmt.Sprintf("%d resource types and %d data sources are served in %s%s", o.serving.resources, o.serving.data, o.serving.Group.Name, of)
		if len(o.serving.unmatched) > 0 {
			served.Message += fmt.Sprintf("; in spec.types, %s selects nothing: it has %s", some(o.serving.unmatched), some(typesOf(o.serving.all)))
		}
	default:
		served.Reason, served.Message = v1alpha1.ReasonNotInstalled, o.server+": its package is not installed; the condition Installed says why"
	}
	return installed, served
}

// write brings a status to what this server knows, as far as that is for it to say, and tells whether
// anything changed.
//
// All servers write. What works on one of them counts: another that has trouble leaves it as it is, unless it
// said so itself. Else who writes last is heard, and nobody writes because another has.
func (o opinion) write(status *v1alpha1.ProviderStatus, generation int64, group string, now metav1.Time) bool {
	before := status.DeepCopy()
	installed, served := o.says()
	if o.mayWrite(status, installed, generation) {
		set(status, installed, generation, now)
		if o.installed != nil {
			status.Digest, status.Signature = o.installed.Content, o.installed.Signature
		}
	}
	if o.mayWrite(status, served, generation) {
		set(status, served, generation, now)
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

func (o opinion) mayWrite(status *v1alpha1.ProviderStatus, c metav1.Condition, generation int64) bool {
	was := meta.FindStatusCondition(status.Conditions, c.Type)
	if was == nil || was.ObservedGeneration < generation {
		return true
	}
	if was.ObservedGeneration > generation {
		return false // another server has seen a later spec
	}
	good := was.Status == metav1.ConditionTrue
	switch c.Status {
	case metav1.ConditionTrue:
		// Of the package any account does; of types the number counts, which is the same everywhere.
		return !good || c.Type == v1alpha1.ProviderServed && was.Message != c.Message && !strings.Contains(c.Message, "installed before")
	default:
		return !good || o.ofAll(c) || o.own(status)
	}
}

// ofAll tells whether a condition holds for every server alike.
func (o opinion) ofAll(c metav1.Condition) bool {
	switch c.Reason {
	case v1alpha1.ReasonTypeTaken, v1alpha1.ReasonGroupTaken, v1alpha1.ReasonNoTypes, v1alpha1.ReasonInvalid:
		return true
	}
	return false
}

// own tells whether this server was the one that said that the package is installed.
func (o opinion) own(status *v1alpha1.ProviderStatus) bool {
	was := meta.FindStatusCondition(status.Conditions, v1alpha1.ProviderInstalled)
	return was == nil || was.Status != metav1.ConditionTrue || strings.HasSuffix(was.Message, ", by "+o.server)
}

func set(status *v1alpha1.ProviderStatus, c metav1.Condition, generation int64, now metav1.Time) {
	c.ObservedGeneration, c.LastTransitionTime = generation, now
	c.Message = shortened(c.Message)
	meta.SetStatusCondition(&status.Conditions, c)
}

func shortened(text string) string {
	if len(text) <= longest {
		return text
	}
	return strings.ToValidUTF8(text[:longest], "") + "…"
}

// report writes a Provider's status, if it is not so already.
func (r *Registry) report(ctx context.Context, p *v1alpha1.Provider) error {
	o, ok := r.opinionOf(p.Name)
	if !ok {
		return nil
	}
	change := func(status *v1alpha1.ProviderStatus) bool {
		return o.write(status, p.Generation, schema.Group(p.Name), metav1.NewTime(r.config.Clock.Now()))
	}
	if !change(p.Status.DeepCopy()) {
		return nil
	}
	return writeStatus(ctx, r.api.Dynamic.Resource(v1alpha1.ProviderResource), p, change)
}

// tell writes how far a download is, now and then.
func (r *Registry) tell(ctx context.Context, p *v1alpha1.Provider, now install.StepProgress) {
	step := fmt.Sprintf("%s: %d MB", now.Step, now.Done>>20)
	if now.Total > 0 {
		step = fmt.Sprintf("%s: %d of %d MB", now.Step, now.Done>>20, now.Total>>20)
	}
	r.mu.Lock()
	e := r.entries[p.Name]
	at := r.config.Clock.Now()
	due := e != nil && at.Sub(e.stepTold) >= tellEvery
	if e != nil {
		e.step = step
		if due {
			e.stepTold = at
		}
	}
	r.mu.Unlock()
	if !due {
		return
	}
	if err := r.report(ctx, p); err != nil {
		r.config.Log.Debug("the progress of an installation cannot be written", "provider", p.Name, "error", err)
	}
}

// hold keeps a Provider from vanishing while something of its types is stored.
func (r *Registry) hold(ctx context.Context, p *v1alpha1.Provider) error {
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
	client := r.api.Dynamic.Resource(v1alpha1.ProviderResource)
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

// writeStatus changes a Provider's status as it is in the API, not as a cache has it.
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
