-- Tables and strings of Lua: binary trees that come and go, records by name, text put together.
-- It fails if something was lost on the way.

local n = tonumber(arg[1])

local function tree(depth)
    if depth == 0 then return {} end
    return { left = tree(depth - 1), right = tree(depth - 1), depth = depth }
end

local function count(node)
    return 1 + (node.left and count(node.left) + count(node.right) or 0)
end

local function trees(depth)
    local kept = tree(depth)
    for _ = 1, 8 do
        assert(count(tree(depth - 2)) == 2 ^ (depth - 1) - 1)
    end
    assert(count(kept) == 2 ^ (depth + 1) - 1)
end

local function records(n)
    local by_name, names = {}, {}
    for i = 1, n do
        local name = ("record-%d-%d"):format(i * 7919 % n, i)
        by_name[name] = { id = i, tags = { "t" .. i % 7, "t" .. i % 31 }, score = i / 2 }
        names[i] = name
    end
    table.sort(names)
    -- Every third goes, so that what stays lies scattered.
    for i = 1, n, 3 do by_name[names[i]] = nil end
    local parts, left = {}, 0
    for i = 1, n do
        local record = by_name[names[i]]
        if record then
            left = left + 1
            parts[left] = names[i] .. "=" .. record.id .. "," .. record.tags[2]
        end
    end
    local text, found = table.concat(parts, "\n"), 0
    for line in text:gmatch("[^\n]+") do
        local name, id = line:match("^(%S+)=(%d+),")
        if by_name[name].id == tonumber(id) then found = found + 1 end
    end
    assert(found == left and left == n - (n + 2) // 3)
end

for _ = 1, 3 do
    records(n)
    trees(math.max(3, math.floor(math.log(n, 2))))
end
