-- job_submit.lua (slurmctld): turns `--fill` into partition `fill` and gres/fill slots, and refuses,
-- in one sentence, what can't be a fill or host job.
--
-- Whatever goes wrong in here: a job with any trace of fill is refused, any other goes on as it
-- came. (Slurm itself would accept a job that a failing script left half rewritten.)
--
-- Settings stand in sfill_submit.conf beside this file, `key = value` a line. A site with a script
-- of its own runs this one by dofile() and calls the two functions from its own.

local SETTINGS = {
   partition = "fill",     -- of fill jobs
   gres = "fill",          -- its slots are counted by this GRES
   slot_mib = "1024",      -- GPU memory of a slot
   closed_gres = "none",   -- a GRES for no job: twins list GPUs by it, so that Slurm denies them
   gres_prefix = "auto",   -- how this Slurm writes a GRES: "gres:" until 23.02, then "gres/"
   anchor = "none",        -- the twin that stays drained; a fill that asks for it would never run
   most_gib = "1024",      -- most that one GPU can ever lend: who asks for more would wait for ever
}

local NO_VAL16 = 65534
local NO_VAL = 4294967294
local TRES_FIELDS = { "tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task" }
local PER_GPU_FIELDS = { "cpus_per_tres", "mem_per_tres" }
local GPU_GRES = { gpu = true, mps = true, shard = true }

-- Refusals travel as errors with this shape, so that a check deep down can end the whole.
local function refuse(format, ...)
   error({ refusal = string.format(format, ...) }, 0)
end

local function read_settings()
   local source = debug and debug.getinfo(1, "S").source or ""
   local folder = string.match(source, "^@(.*/)") or "/etc/slurm/"
   local file = io.open(folder .. "sfill_submit.conf", "r")
   if not file then return end
   for line in file:lines() do
      local key, value = string.match(line, "^%s*([%w_]+)%s*=%s*(%S+)%s*$")
      if key and SETTINGS[key] then
         SETTINGS[key] = value
      elseif not string.match(line, "^%s*#") and not string.match(line, "^%s*$") then
         slurm.log_error("job_submit/sfill: sfill_submit.conf: '%s' is no setting", line)
      end
   end
   file:close()
end

-- The release says how a GRES is written; this script runs inside slurmctld, so ask that program.
local function find_gres_prefix()
   if SETTINGS.gres_prefix ~= "auto" then return end
   local pipe = io.popen("/proc/$PPID/exe -V 2>/dev/null")
   local major, minor = string.match(pipe:read("*l") or "", "(%d+)%.(%d+)")
   pipe:close()
   local release = (tonumber(major) or 99) * 100 + (tonumber(minor) or 0)
   SETTINGS.gres_prefix = release < 2311 and "gres:" or "gres/"
end

-- spank_job_env counts from 0 in the releases we know; one that counts from 1 is read as well.
local function spank_variable(job_desc, name)
   local list = job_desc.spank_job_env
   if list == nil then return nil end
   for i = 0, job_desc.spank_job_env_size or 0 do
      local key, value = string.match(list[i] or "", "^([^=]+)=(.*)$")
      if key == name or key == "SPANK_" .. name then return value end
   end
   return nil
end

-- Names of the GRES in "gres:gpu:a100:2,gres/fill=4" as a set; "" is set for what has no name.
local function gres_names(text)
   local names = {}
   for item in string.gmatch(text or "", "[^,]+") do
      local name = string.gsub(item, "^%s*gres[:/]", "")
      names[string.lower(string.match(name, "^[^:=/%s]*"))] = true
   end
   return names
end

local function asks_for(job_desc, fields, wanted)
   for _, field in ipairs(fields) do
      local text = job_desc[field]
      if type(text) == "string" then
         for name in pairs(gres_names(text)) do
            if wanted[name] then return field, name end
         end
      end
   end
   return nil
end

-- Whether it asks for at least one GPU: "gres:gpu:0" and "gres/gpu:a100=0" ask for none.
local function asks_for_gpus(job_desc)
   for _, field in ipairs(TRES_FIELDS) do
      local text = job_desc[field]
      for item in string.gmatch(type(text) == "string" and text or "", "[^,]+") do
         if gres_names(item).gpu and not string.match(item, "[:=]0+%s*$") then return true end
      end
   end
   return false
end

local function names_partition(list, name)
   for item in string.gmatch(list or "", "[^,%s]+") do
      if item == name then return true end
   end
   return false
end

-- Whether a list of nodes names one: "n1,f[0-3,7]". What has several brackets can't be told.
local function names_node(list, node)
   local function among(item)
      local before, numbers, after = string.match(item, "^([^%[]*)%[([^%]]*)%]([^%[]*)$")
      if not before then return item == node end
      local middle = string.sub(node, #before + 1, #node - #after)
      if before .. middle .. after ~= node or not string.match(middle, "^%d+$") then
         return false
      end
      for low, high in string.gmatch(numbers, "(%d+)%-?(%d*)") do
         high = high == "" and low or high
         -- Slurm pads numbers to the length of the first one.
         local own = #low < 10 and string.format("%0" .. #low .. "d", tonumber(middle))
         if own == middle and tonumber(low) <= tonumber(middle) and
            tonumber(middle) <= tonumber(high) then
            return true
         end
      end
      return false
   end
   local flat = string.gsub(list, "%b[]", function(inner) return (string.gsub(inner, ",", ";")) end)
   for item in string.gmatch(flat, "[^,%s]+") do
      if among(item) then return true end
   end
   return false
end

local function check_nodes(job_desc)
   local nodes = job_desc.req_nodes
   if SETTINGS.anchor ~= "none" and type(nodes) == "string" and
      names_node(nodes, SETTINGS.anchor) then
      refuse("-w %s: %s never runs a job; leave it out of the nodes of a fill job", nodes,
         SETTINGS.anchor)
   end
end

-- Memory of a canonical spec ("mem=16G", "mem=500M") in MiB.
local function spec_memory_mib(asked, spec)
   local number, unit = string.match(spec, "^mem=(%d+)([MG])$")
   number = tonumber(number)
   if not number or number < 1 then
      refuse("%s: '%s' can't be read; allowed is mem=SIZE, as in mem=16G", asked, spec)
   end
   return unit == "G" and number * 1024 or number
end

-- Is there any sign of a fill job? Asked before anything else and after a failure: it may not fail.
local function has_trace(job_desc)
   local found = false
   local function look(test)
      local ok, answer = pcall(test)
      found = found or (ok and answer and true)
   end
   look(function() return spank_variable(job_desc, "FILL_SPEC") end)
   look(function() return spank_variable(job_desc, "_SLURM_SPANK_OPTION_fill_fill") end)
   look(function() return names_partition(job_desc.partition, SETTINGS.partition) end)
   for _, field in ipairs(TRES_FIELDS) do
      look(function()
         return asks_for(job_desc, { field },
            { [SETTINGS.gres] = true, [SETTINGS.closed_gres] = true })
      end)
   end
   return found
end

local function check_closed(job_desc)
   if asks_for(job_desc, TRES_FIELDS, { [SETTINGS.closed_gres] = true }) then
      refuse("gres/%s stands for GPUs of another node and can't be asked for; leave it out",
         SETTINGS.closed_gres)
   end
end

local function check_fill_request(job_desc, asked)
   local partition = job_desc.partition
   if partition and partition ~= "" and partition ~= SETTINGS.partition then
      refuse("%s: a fill job runs in partition %s and nowhere else; leave -p %s out", asked,
         SETTINGS.partition, partition)
   end
   if asks_for(job_desc, TRES_FIELDS, GPU_GRES) or asks_for(job_desc, PER_GPU_FIELDS, GPU_GRES) or
      (job_desc.ntasks_per_tres or NO_VAL16) < NO_VAL16 then
      refuse("%s: a fill job is lent its GPU and can't ask for one; leave --gres=gpu, --gpus* and "
         .. "--*-per-gpu out, and say with --fill=mem=SIZE how much GPU memory it needs", asked)
   end
   if asks_for(job_desc, TRES_FIELDS, { [SETTINGS.gres] = true }) then
      refuse("%s: gres/%s is counted from --fill=mem=SIZE; leave --gres=%s out", asked,
         SETTINGS.gres, SETTINGS.gres)
   end
   local shared = job_desc.shared
   if shared == 0 or shared == 2 or shared == 3 then
      refuse("%s: --exclusive can't go with it, since fill jobs share a node; leave it out", asked)
   end
end

local function make_fill(job_desc, spec)
   -- A variable in a profile meets every job: its owner must read where the refusal comes from.
   local asked = spank_variable(job_desc, "FILL_FROM_ENVIRONMENT") and "SFILL_FILL" or "--fill"
   check_fill_request(job_desc, asked)
   check_nodes(job_desc)
   local memory_mib = spec_memory_mib(asked, spec)
   local most_gib = tonumber(SETTINGS.most_gib)
   if memory_mib > most_gib * 1024 then
      refuse("%s: %s is more than any GPU here can lend; the most is mem=%dG", asked, spec,
         most_gib)
   end
   local slots = math.ceil(memory_mib / tonumber(SETTINGS.slot_mib))
   -- Other --gres (licences, scratch) stay; "" is how Slurm's Lua says none.
   local others = job_desc.tres_per_node
   local mine = string.format("%s%s:%d", SETTINGS.gres_prefix, SETTINGS.gres, slots)
   job_desc.tres_per_node = (others and others ~= "") and (others .. "," .. mine) or mine
   job_desc.partition = SETTINGS.partition
   if (job_desc.min_nodes or NO_VAL) >= NO_VAL then
      job_desc.min_nodes = 1
      job_desc.max_nodes = 1
   end
   if (job_desc.requeue or NO_VAL16) >= NO_VAL16 then
      job_desc.requeue = 1 -- an evicted fill goes on elsewhere, whatever the site's default
   end
end

local function check_ordinary(job_desc)
   if names_partition(job_desc.partition, SETTINGS.partition) then
      refuse("partition %s is for fill jobs; ask with --fill=mem=SIZE instead of -p %s",
         SETTINGS.partition, job_desc.partition)
   end
   if asks_for(job_desc, TRES_FIELDS, { [SETTINGS.gres] = true }) then
      refuse("gres/%s can't be asked for by hand; ask with --fill=mem=SIZE", SETTINGS.gres)
   end
   if spank_variable(job_desc, "FILL_HOST_SPEC") and
      not asks_for_gpus(job_desc) and
      -- A variable in a profile meets every job, also those without a GPU: they have nothing to lend.
      not spank_variable(job_desc, "FILL_HOST_FROM_ENVIRONMENT") then
      refuse("--fill-host: this job holds no GPU that it could lend; ask for one with --gres=gpu:N "
         .. "or --gpus=N, or leave --fill-host out")
   end
end

local function submit(job_desc)
   check_closed(job_desc)
   local spec = spank_variable(job_desc, "FILL_SPEC")
   if spec and spec ~= "" then
      if spank_variable(job_desc, "FILL_HOST_SPEC") then
         refuse("--fill and --fill-host can't go together; leave one out")
      end
      make_fill(job_desc, spec)
   else
      check_ordinary(job_desc)
   end
end

-- What may not change later: a fill job stays a fill job of its size, no other becomes one.
local function modify(job_desc, job_rec)
   local is_fill = job_rec.partition == SETTINGS.partition
   local partition = job_desc.partition
   check_closed(job_desc)
   if is_fill then
      check_nodes(job_desc)
      if partition and partition ~= "" and partition ~= SETTINGS.partition then
         refuse("a fill job can't leave partition %s; submit it anew without --fill",
            SETTINGS.partition)
      end
      for _, fields in ipairs({ TRES_FIELDS, PER_GPU_FIELDS }) do
         for _, field in ipairs(fields) do
            if type(job_desc[field]) == "string" then
               refuse("a fill job's GRES can't be changed; submit it anew with --fill=mem=SIZE")
            end
         end
      end
      if job_desc.shared == 0 then
         refuse("a fill job can't become exclusive, since fill jobs share a node")
      end
      return
   end
   if names_partition(partition, SETTINGS.partition) then
      refuse("a job can't be moved into partition %s; submit it with --fill=mem=SIZE",
         SETTINGS.partition)
   end
   if asks_for(job_desc, TRES_FIELDS, { [SETTINGS.gres] = true }) then
      refuse("gres/%s can't be asked for by hand; submit with --fill=mem=SIZE", SETTINGS.gres)
   end
end

-- Runs `work`; a refusal or, with a trace of fill, a failure becomes slurm.ERROR.
local function guarded(what, traced, work)
   local ok, problem = pcall(work)
   if ok then return slurm.SUCCESS end
   if type(problem) == "table" and problem.refusal then
      slurm.log_info("job_submit/sfill: %s refused: %s", what, problem.refusal)
      slurm.log_user("%s", problem.refusal)
      return slurm.ERROR
   end
   slurm.log_error("job_submit/sfill: %s: %s", what, tostring(problem))
   if not traced() then return slurm.SUCCESS end
   slurm.log_user("%s", "--fill: the site's job_submit.lua failed; the job was not accepted, "
      .. "tell the operator")
   return slurm.ERROR
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   return guarded("submission", function() return has_trace(job_desc) end,
      function() submit(job_desc) end)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   local function traced()
      local ok, is_fill = pcall(function() return job_rec.partition == SETTINGS.partition end)
      return (ok and is_fill) or has_trace(job_desc)
   end
   return guarded("modification", traced, function() modify(job_desc, job_rec) end)
end

for _, step in ipairs({ read_settings, find_gres_prefix }) do
   local ok, problem = pcall(step)
   if not ok then slurm.log_error("job_submit/sfill: settings: %s", tostring(problem)) end
end
slurm.log_info("job_submit/sfill: partition=%s %s%s slot=%s MiB most=%s GiB", SETTINGS.partition,
   SETTINGS.gres_prefix, SETTINGS.gres, SETTINGS.slot_mib, SETTINGS.most_gib)
return slurm.SUCCESS
