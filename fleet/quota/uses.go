// Package quota decides whether a write fits into a FleetQuota, and counts what a namespace uses.
//
// It is pure: the time is an argument. Package fleet/quotas reads and writes the quotas. DESIGN.md
// explains why the count is exact, although servers admit writes concurrently.
package quota

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	helpers "k8s.io/component-helpers/resource"
)

// Pods are some equal pods.
type Pods struct {
	Count int64
	// Spec of one of them; nil if only Requests are known.
	Spec map[string]any
	// Requests of one of them, by resource; nil with Spec.
	Requests map[string]string
}

// UsesOf returns what pods use, by the names of all limits that a FleetQuota may have.
func UsesOf(pods []Pods) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for _, p := range pods {
		one, err := usesOfOne(p)
		if err != nil {
			return nil, err
		}
		Add(out, Times(one, p.Count))
	}
	return out, nil
}

func usesOfOne(p Pods) (corev1.ResourceList, error) {
	out := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}
	requests := corev1.ResourceList{}
	if p.Spec == nil {
		for name, text := range p.Requests {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, fmt.Errorf("read the request of %s: %w", name, err)
			}
			requests[corev1.ResourceName(name)] = q
		}
	} else {
		pod, err := podOf(p.Spec)
		if err != nil {
			return nil, err
		}
		requests = helpers.PodRequests(pod, helpers.PodResourcesOptions{})
		for name, q := range helpers.PodLimits(pod, helpers.PodResourcesOptions{}) {
			out["limits."+name] = q
		}
	}
	for name, q := range requests {
		out["requests."+name] = q
		if isBasic(name) {
			out[name] = q
		}
	}
	return out, nil
}

// podOf returns a pod with a spec. As in an API server, a limit without a request is a request too.
func podOf(spec map[string]any) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &pod.Spec); err != nil {
		return nil, fmt.Errorf("read a pod's spec: %w", err)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			r := &list[i].Resources
			for name, limit := range r.Limits {
				if _, has := r.Requests[name]; !has {
					if r.Requests == nil {
						r.Requests = corev1.ResourceList{}
					}
					r.Requests[name] = limit
				}
			}
		}
	}
	return pod, nil
}

// isBasic reports whether a resource may be limited by its name alone, which limits its requests.
func isBasic(name corev1.ResourceName) bool {
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage
}

// Unspecified returns an error if a container does not specify a basic resource that is limited:
// its use could not be counted.
func Unspecified(pods []Pods, hard corev1.ResourceList) error {
	for _, p := range pods {
		if p.Spec == nil {
			continue
		}
		pod, err := podOf(p.Spec)
		if err != nil {
			return err
		}
		var whole corev1.ResourceRequirements
		if pod.Spec.Resources != nil {
			whole = *pod.Spec.Resources
		}
		for _, name := range sorted(hard) {
			text, limits := strings.CutPrefix(string(name), "limits.")
			text = strings.TrimPrefix(text, "requests.")
			if !isBasic(corev1.ResourceName(text)) {
				continue
			}
			of := func(r corev1.ResourceRequirements) bool {
				list := r.Requests
				if limits {
					list = r.Limits
				}
				_, has := list[corev1.ResourceName(text)]
				return has
			}
			if of(whole) {
				continue
			}
			for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
				if !of(c.Resources) {
					field := "requests"
					if limits {
						field = "limits"
					}
					return fmt.Errorf("container %s does not specify resources.%s.%s, which is limited: set it", c.Name, field, text)
				}
			}
		}
	}
	return nil
}

// Add adds amounts to a list.
func Add(to, amounts corev1.ResourceList) {
	for name, q := range amounts {
		sum := to[name].DeepCopy()
		sum.Add(q)
		to[name] = sum
	}
}

// Times returns a multiple of amounts.
func Times(amounts corev1.ResourceList, n int64) corev1.ResourceList {
	out := make(corev1.ResourceList, len(amounts))
	for name, q := range amounts {
		q = q.DeepCopy()
		q.Mul(n)
		out[name] = q
	}
	return out
}

// most returns the larger amount of each resource.
func most(a, b corev1.ResourceList) corev1.ResourceList {
	out := maps.Clone(a)
	if out == nil {
		out = corev1.ResourceList{}
	}
	for name, q := range b {
		if other, has := out[name]; !has || q.Cmp(other) > 0 {
			out[name] = q
		}
	}
	return out
}

// excess returns by how much amounts exceed others, without the resources that do not.
func excess(amounts, others corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range amounts {
		q = q.DeepCopy()
		q.Sub(others[name])
		if q.Sign() > 0 {
			out[name] = q
		}
	}
	return out
}

// only returns the amounts of limited resources.
func only(amounts, hard corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name := range hard {
		if q, has := amounts[name]; has {
			out[name] = q
		}
	}
	return out
}

func sorted(of corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(of)) }

func text(of corev1.ResourceList) string {
	parts := make([]string, 0, len(of))
	for _, name := range sorted(of) {
		q := of[name]
		parts = append(parts, string(name)+"="+q.String())
	}
	return strings.Join(parts, ",")
}
