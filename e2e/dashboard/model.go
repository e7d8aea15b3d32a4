package dashboard

import (
	"bytes"
	"encoding/json"
)

// A Dashboard is a page of panels.
type Dashboard struct {
	ID            *int       `json:"id"` // null: Grafana gives it one
	UID           string     `json:"uid"`
	Title         string     `json:"title"`
	Description   string     `json:"description"`
	Tags          []string   `json:"tags"`
	Editable      bool       `json:"editable"`
	GraphTooltip  int        `json:"graphTooltip"` // 1: one crosshair for all panels
	Refresh       string     `json:"refresh"`
	SchemaVersion int        `json:"schemaVersion"`
	Time          Range      `json:"time"`
	Timezone      string     `json:"timezone"`
	Links         []Link     `json:"links"`
	Annotations   Listing    `json:"annotations"`
	Templating    Templating `json:"templating"`
	Panels        []Panel    `json:"panels"`
}

// A Range of time, in Grafana's words.
type Range struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// A Listing of nothing: Grafana wants the list to be there.
type Listing struct {
	List []string `json:"list"`
}

// Templating are the variables at the top of a dashboard.
type Templating struct {
	List []Variable `json:"list"`
}

// A Variable is a choice at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Label      string      `json:"label"`
	Type       string      `json:"type"` // datasource or query
	Datasource *Datasource `json:"datasource,omitempty"`
	Query      any         `json:"query"` // the kind of a datasource, or a Query
	Regex      string      `json:"regex"`
	Refresh    int         `json:"refresh"` // 1: when the dashboard is loaded, 2: when its time changes
	Sort       int         `json:"sort,omitempty"`
	Multi      bool        `json:"multi"`
	IncludeAll bool        `json:"includeAll"`
	AllValue   string      `json:"allValue,omitempty"`
	Current    Current     `json:"current"`
	Hide       int         `json:"hide"`
}

// A Query of a variable.
type Query struct {
	Query string `json:"query"`
	RefID string `json:"refId"`
}

// Current is the value that a variable begins with.
type Current struct {
	Text  any `json:"text,omitempty"`
	Value any `json:"value,omitempty"`
}

// A Datasource is what a panel asks.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// A Link leads out of a panel or a dashboard.
type Link struct {
	Title       string   `json:"title"`
	Type        string   `json:"type,omitempty"` // of a dashboard's link: dashboards or link
	Tags        []string `json:"tags,omitempty"`
	URL         string   `json:"url"`
	AsDropdown  bool     `json:"asDropdown,omitempty"`
	IncludeVars bool     `json:"includeVars,omitempty"`
	KeepTime    bool     `json:"keepTime,omitempty"`
	TargetBlank bool     `json:"targetBlank"`
}

// A Panel is one picture, which answers one question.
type Panel struct {
	ID              int              `json:"id"`
	Type            string           `json:"type"`
	Title           string           `json:"title"`
	Description     string           `json:"description,omitempty"`
	GridPos         Grid             `json:"gridPos"`
	Datasource      *Datasource      `json:"datasource,omitempty"`
	Interval        string           `json:"interval,omitempty"` // the smallest step
	Targets         []Target         `json:"targets,omitempty"`
	Links           []Link           `json:"links,omitempty"`
	FieldConfig     *FieldConfig     `json:"fieldConfig,omitempty"`
	Options         map[string]any   `json:"options,omitempty"`
	Transformations []Transformation `json:"transformations,omitempty"`
	Collapsed       *bool            `json:"collapsed,omitempty"` // of a row
	Panels          []Panel          `json:"panels,omitempty"`    // of a collapsed row; ours are open
}

// Grid is a panel's place, in 24 columns.
type Grid struct {
	H int `json:"h"`
	W int `json:"w"`
	X int `json:"x"`
	Y int `json:"y"`
}

// A Target is one query of a panel, in PromQL (Expr) or TraceQL (Query).
type Target struct {
	RefID        string      `json:"refId"`
	Datasource   *Datasource `json:"datasource"`
	Expr         string      `json:"expr,omitempty"`
	LegendFormat string      `json:"legendFormat,omitempty"`
	Format       string      `json:"format,omitempty"`
	Exemplar     bool        `json:"exemplar,omitempty"`
	Instant      bool        `json:"instant,omitempty"`
	Range        bool        `json:"range,omitempty"`
	Query        string      `json:"query,omitempty"`
	QueryType    string      `json:"queryType,omitempty"`
	TableType    string      `json:"tableType,omitempty"`
	Limit        int         `json:"limit,omitempty"`
}

// FieldConfig says how values are shown.
type FieldConfig struct {
	Defaults  Field      `json:"defaults"`
	Overrides []Override `json:"overrides"`
}

// A Field is how a value is shown.
type Field struct {
	Unit       string         `json:"unit"`
	Min        *float64       `json:"min,omitempty"`
	Max        *float64       `json:"max,omitempty"`
	Decimals   *int           `json:"decimals,omitempty"`
	NoValue    string         `json:"noValue,omitempty"`
	Color      map[string]any `json:"color,omitempty"`
	Thresholds *Thresholds    `json:"thresholds,omitempty"`
	Custom     map[string]any `json:"custom,omitempty"`
}

// Thresholds colour a value.
type Thresholds struct {
	Mode  string `json:"mode"`
	Steps []Step `json:"steps"`
}

// A Step is a threshold; the first one has no value.
type Step struct {
	Color string   `json:"color"`
	Value *float64 `json:"value"`
}

// An Override shows some fields in another way.
type Override struct {
	Matcher    Matcher    `json:"matcher"`
	Properties []Property `json:"properties"`
}

// A Matcher says which fields.
type Matcher struct {
	ID      string `json:"id"`
	Options string `json:"options"`
}

// A Property of a field.
type Property struct {
	ID    string `json:"id"`
	Value any    `json:"value"`
}

// A Transformation is done to a table before it is shown.
type Transformation struct {
	ID      string         `json:"id"`
	Options map[string]any `json:"options"`
}

// JSON is the dashboard as Grafana reads it, the same bytes each time.
func (d Dashboard) JSON() ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(d)
	return out.Bytes(), err
}
