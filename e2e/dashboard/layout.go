package dashboard

import (
	"maps"
	"slices"
)

// A row is a question that several panels answer together.
type row struct {
	title  string
	height int
	panels []Panel // share the row's width evenly
}

// layout places rows below each other and numbers the panels.
func layout(rows ...row) []Panel {
	const columns = 24
	var all []Panel
	y := 0
	for _, r := range rows {
		open := false
		all = append(all, Panel{ID: len(all) + 1, Type: "row", Title: r.title, GridPos: Grid{H: 1, W: columns, Y: y}, Collapsed: &open})
		y++
		width := columns / len(r.panels)
		for i, p := range r.panels {
			p.ID = len(all) + 1
			p.GridPos = Grid{H: r.height, W: width, X: i * width, Y: y}
			all = append(all, p)
		}
		y += r.height
	}
	return all
}

// page makes a dashboard of rows.
func page(uid, title, about string, variables []Variable, rows ...row) Dashboard {
	return Dashboard{
		UID: uid, Title: title, Description: about, Tags: []string{"oncemill"},
		Editable: true, GraphTooltip: 1, Refresh: "10s", SchemaVersion: 42,
		Time:        Range{From: "now-30m", To: "now"},
		Timezone:    "browser",
		Links:       []Link{{Title: "Oncemill", Type: "dashboards", Tags: []string{"oncemill"}, IncludeVars: true, KeepTime: true}},
		Annotations: Listing{List: []string{}},
		Templating:  Templating{List: variables},
		Panels:      layout(rows...),
	}
}

// All are the dashboards, by the name of their file.
func All() map[string]Dashboard {
	return map[string]Dashboard{
		"duplicates.json":     duplicates(),
		"consumer-group.json": consumerGroup(),
		"outbox.json":         outbox(),
		"store.json":          store(),
	}
}

// Files are the names of the dashboards' files, sorted.
func Files() []string { return slices.Sorted(maps.Keys(All())) }
