package main

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var siteVersion = schema.GroupVersion{Group: "web.example.com", Version: "v1"}

// Site is a web site. Its schema is in config/site.yaml.
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SiteSpec   `json:"spec,omitzero"`
	Status SiteStatus `json:"status,omitzero"`
}

// SiteSpec is the desired state of a Site.
type SiteSpec struct {
	Image    string            `json:"image,omitempty"`
	Replicas int32             `json:"replicas,omitempty"`
	Pages    map[string]string `json:"pages,omitempty"` // by file name
}

// SiteStatus is the observed state of a Site.
type SiteStatus struct {
	ReadyReplicas int32              `json:"readyReplicas"`
	Conditions    []metav1.Condition `json:"conditions,omitempty"`
}

// SiteList is a list of Sites.
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}

func (s *Site) DeepCopyObject() runtime.Object {
	out := *s
	out.ObjectMeta = *s.ObjectMeta.DeepCopy()
	out.Spec.Pages = maps.Clone(s.Spec.Pages)
	out.Status.Conditions = slices.Clone(s.Status.Conditions)
	return &out
}

func (l *SiteList) DeepCopyObject() runtime.Object {
	out := &SiteList{l.TypeMeta, *l.ListMeta.DeepCopy(), nil}
	for _, site := range l.Items {
		out.Items = append(out.Items, *site.DeepCopyObject().(*Site))
	}
	return out
}
